"""Images: whether they are there, what their labels and environment are, and fetching those that are not."""

import re
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import docker.auth
import docker.errors

from scheduler.engines.base import Progress

STOPS = "SIGTERM"  # what ends a container whose image names no signal


@dataclass(frozen=True, slots=True)
class Image:
    """`id` says what is in it: another content has another one. `stop_signal`: one that there is."""

    id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[str, ...] = ()
    stop_signal: str = STOPS
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = ""

    def runs(self, command: Sequence[str]) -> Sequence[str]:
        """What begins if a launch has this command; nothing if neither says what."""
        return (*self.entrypoint, *(command or self.command))


class Images:
    """Blocking; to be called from worker threads. Two launches of one missing image fetch it once."""

    def __init__(self, api: docker.APIClient, registries: Path | None) -> None:
        self._api, self._registries = api, registries
        self._lock = threading.Lock()
        self._fetching: dict[str, Future[None]] = {}

    def find(self, name: str) -> Image | None:
        """None if it is not there. Raises docker.errors.APIError."""
        try:
            return self._look(name)
        except docker.errors.ImageNotFound:
            return None

    def fetch(self, name: str, progress: Progress | None) -> Image:
        """The same, fetched first: as slowly as its registry likes."""
        self._fetch_once(name, progress)
        return self._look(name)

    def _look(self, name: str) -> Image:
        found = self._inspect(name)
        config = found.get("Config") or {}
        return Image(
            found["Id"],
            config.get("Labels") or {},
            tuple(config.get("Env") or ()),
            _signal(config.get("StopSignal") or ""),
            tuple(config.get("Entrypoint") or ()),
            tuple(config.get("Cmd") or ()),
            config.get("WorkingDir") or "",
        )

    def _inspect(self, name: str) -> dict[str, Any]:
        return self._api.inspect_image(name)  # type: ignore[no-untyped-call, no-any-return]

    def _fetch_once(self, name: str, progress: Progress | None) -> None:
        with self._lock:
            running = self._fetching.get(name)
            mine = self._fetching.setdefault(name, Future()) if running is None else None
        if mine is None:
            assert running is not None, "one of the two is there"
            running.result()
            return
        try:
            self._fetch(name, progress)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(None)
        finally:
            with self._lock:
                del self._fetching[name]

    def _fetch(self, name: str, progress: Progress | None) -> None:
        layers = Layers()
        for line in self._api.pull(name, tag=_tag(name), stream=True, decode=True, auth_config=self._credentials(name)):
            if "error" in line:
                raise docker.errors.APIError(line["error"], explanation=line["error"])
            if progress is not None and (words := layers.progress(line)):
                progress(f"Fetching {name}: {words}")

    def _credentials(self, name: str) -> dict[str, Any] | None:
        """Read anew each time, so that a changed password needs no restart. None: the SDK's own configuration."""
        if self._registries is None:
            return None
        registry, _ = docker.auth.resolve_repository_name(name)
        found: dict[str, Any] | None = docker.auth.load_config(str(self._registries)).resolve_authconfig(registry)
        return found


def _signal(named: str) -> str:
    """The image's, if Docker knows it by this name or number: an image may say anything."""
    name = named.upper().removeprefix("SIG")
    known = f"SIG{name}" in signal.Signals.__members__ or re.fullmatch(r"RT(MIN\+|MAX-)([1-9]|1[0-4])", name)
    number = name.isdecimal() and int(name) in signal.valid_signals()
    return named if known or number else STOPS


def _tag(name: str) -> str | None:
    """Without a tag, and without a digest, Docker would fetch every tag there is."""
    return None if "@" in name or ":" in name.rsplit("/", 1)[-1] else "latest"


class Layers:
    """How far those of one image are, from what Docker tells while it fetches them.

    Which of these words come, and whether with sizes, depends on where it keeps images and on how small a layer is.
    """

    COMING = ("Pulling fs layer", "Waiting", "Downloading", "Verifying Checksum")
    HERE = ("Download complete", "Extracting", "Pull complete", "Already exists")

    def __init__(self) -> None:
        self._bytes: dict[str, tuple[int, int]] = {}
        self._here: dict[str, bool] = {}

    def progress(self, line: Mapping[str, Any]) -> str:
        """In words for people; empty if the line says nothing new."""
        status, detail = str(line.get("status", "")), line.get("progressDetail") or {}
        if "id" not in line or status not in (*self.COMING, *self.HERE):
            return status
        before = (sum(self._here.values()), len(self._here))
        self._here[line["id"]] = status in self.HERE
        if status == "Downloading" and detail.get("total"):
            self._bytes[line["id"]] = (detail["current"], detail["total"])
            done, total = (sum(column) for column in zip(*self._bytes.values(), strict=True))
            return f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB"
        here, known = sum(self._here.values()), len(self._here)
        return f"{here} of {known} layers" if (here, known) != before else ""
