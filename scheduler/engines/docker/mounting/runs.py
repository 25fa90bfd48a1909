"""Containers that others have Docker start, and that mount a volume of ours: which of them is which.

Docker tells a volume plugin an ID of the *mounting*, never the container's. That a container has a volume, Docker's
list shows; which mounting is whose, where several containers have one volume, only the kernel knows: the first process
of a container sees the folder that it was given, and the folder is named by our id (/proc/PID/mountinfo). So:

    expect(run)          a folder was given for a mounting of this volume
    users(volume)        who has this volume, by Docker's list, and is not running: one of them is to be started
    whose(found, …)      our id of the container that an inspection shows; the kernel's word is the last one

A container that ends before anybody has looked is known by elimination. What is inspected may be of an earlier run:
what ended before it was last mounted is nobody's end. Nothing here is remembered across a restart; the records are.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import docker

from scheduler import clock, proc
from scheduler.engines.base import Condition, MountUser, Run, Status
from scheduler.engines.docker.logs import parse_stamp
from web.spec.inside.reserved import SOCKETS

_OCTAL = re.compile(r"\\([0-7]{3})")
LONGEST_MAP = 1 << 20  # bytes of a mountinfo that are read: a program may make mounts in its own namespace
AT_REST = ("created", "exited", "restarting")  # states of Docker's in which a container may be about to start
READABLE = ("json-file", "journald", "local")  # log drivers whose output Docker gives back


@dataclass(slots=True)
class _Death:
    """What Docker's event said, for one that Docker removes before anybody has looked (`docker run --rm`)."""

    exit_code: int | None
    at: float


class Mounted:
    """Those that were launched here are not meant: at that place they have a folder, and no volume."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._deaths: dict[str, _Death] = {}  # engine id → how it ended last
        self._births: dict[str, float] = {}

    # ---- what is expected ----

    def expect(self, run: Run) -> None:
        """The same again: it was mounted again."""
        self._runs[run.id] = run

    def again(self, id_: str) -> None:
        """Docker has mounted it again, for a copy or after a restart: what ended before that is no end of it."""
        if run := self._runs.get(id_):
            self._runs[id_] = replace(run, since=clock.wall())

    def forget(self, id_: str) -> None:
        self._runs.pop(id_, None)

    def run(self, id_: str) -> Run | None:
        return self._runs.get(id_)

    def of(self, engine_id: str) -> Run | None:
        """The last run of this container that is known to be its."""
        return max(self._all_of(engine_id), key=lambda run: run.since, default=None)

    def earlier(self, engine_id: str, id_: str) -> list[Run]:
        """The runs of this container before that of `id_`."""
        until = self._runs[id_].since
        return [run for run in self._all_of(engine_id) if run.id != id_ and run.since <= until]

    @property
    def nobodys(self) -> set[str]:
        """Volumes with a mounting of which it is not known yet for sure whose it is."""
        return {run.volume for run in self._all() if not run.sure}

    def __bool__(self) -> bool:
        return bool(self._runs)

    # ---- what Docker lists ----

    def listed(self, api: docker.APIClient) -> list[dict[str, Any]]:
        """Blocking. The containers that mount a volume of those that are expected."""
        if not self._runs:
            return []
        found = api.containers(all=True, filters={"volume": SOCKETS})
        volumes = {run.volume for run in self._all()}
        return [each for each in found if volumes & set(volumes_of(each))]

    def users(self, api: docker.APIClient, volume: str) -> list[MountUser]:
        """Blocking. The containers that have this volume and may be about to start."""
        found = api.containers(all=True, filters={"volume": volume})
        return [
            _user(each, mount)
            for each in found
            for mount in each.get("Mounts", ())
            if mount.get("Name") == volume and each["State"] in AT_REST
        ]

    # ---- what an inspection shows ----

    def whose(self, found: Mapping[str, Any], folder: str) -> str:
        """Our id, or empty. `folder`: the name of what its first process sees at SOCKETS, if it runs."""
        engine_id, state = found["Id"], found["State"]
        if state["Status"] in ("running", "paused"):
            run = self._runs.get(folder)
            if run is None:
                return ""
            self._surely(run, found)
            return run.id
        run = self.of(engine_id) or self._only_one(found)
        if run is None or _seconds(state["FinishedAt"]) < run.since:
            return ""
        self._surely(run, found)
        return run.id

    def _surely(self, run: Run, found: Mapping[str, Any]) -> None:
        # A limit that was raised for what is swapped is none that it was started with: the first one stays.
        memory = run.memory or found["HostConfig"].get("Memory") or None
        self._runs[run.id] = replace(run, engine_id=found["Id"], sure=True, memory=memory)

    def _only_one(self, found: Mapping[str, Any]) -> Run | None:
        began, names = _seconds(found["State"]["StartedAt"]), set(volumes_of(found))
        open_ = [run for run in self._all() if not run.engine_id and run.volume in names and run.since <= began]
        return open_[0] if len(open_) == 1 else None

    # ---- what events say ----

    def happened(self, engine_id: str, change: str, attributes: Mapping[str, str], at: float) -> bool:
        """Whether it concerns us. From another thread."""
        if self.of(engine_id) is None and not (self.nobodys and change == "start"):
            return False
        if change == "start":
            self._births[engine_id] = at
        elif change == "die":
            code = attributes.get("exitCode", "")
            self._deaths[engine_id] = _Death(int(code) if code.isdecimal() else None, at)
        return True

    def ended(self, run: Run, last: Status | None) -> Status | None:
        """How it ended, by its event if no later run's hides that; else as far as it was seen before, if it was.

        `last`: what was seen of it last.
        """
        death, began = self._deaths.get(run.engine_id), self._births.get(run.engine_id, 0.0)
        next_ = min((each.since for each in self._all_of(run.engine_id) if each.since > run.since), default=math.inf)
        if death is not None and run.since <= death.at <= next_:
            if last is not None:
                return replace(last, condition=Condition.ENDED, exit_code=death.exit_code, finished_at=death.at)
            began = began if run.since <= began <= death.at else run.since
            return Status(run.id, run.engine_id, Condition.ENDED, death.exit_code, began, death.at)
        return replace(last, condition=Condition.ENDED) if last is not None else None

    def removed(self, engine_id: str) -> None:
        for run in self._all_of(engine_id):
            del self._runs[run.id]
        self._deaths.pop(engine_id, None)
        self._births.pop(engine_id, None)

    def _all_of(self, engine_id: str) -> list[Run]:
        return [run for run in self._all() if run.engine_id == engine_id]

    def _all(self) -> list[Run]:
        """As of now: other threads look at them, too."""
        return list(self._runs.values())


class Place(NamedTuple):
    """Where a folder is, whoever sees it by whatever path: the device's numbers, and the path in its file system."""

    device: str
    path: PurePosixPath


def folder_of(pid: int, within: Place | None = None) -> str:
    """Blocking. The name of the folder that this process sees at SOCKETS; empty if there is none, or it has ended.

    `within`: it has to lie there. Whoever makes mounts of his own can have one of any name at SOCKETS.
    """
    for device, root, target in _mounts(pid):
        path = PurePosixPath(root)
        if target == SOCKETS and within in (None, Place(device, path.parent)):
            return path.name
    return ""


def place_of(folder: Path) -> Place:
    """Blocking. Where one of ours is."""
    real, longest = PurePosixPath(os.path.realpath(folder)), PurePosixPath()
    found = Place("", longest)
    for device, root, target in _mounts(os.getpid()):
        at = PurePosixPath(target)
        if real.is_relative_to(at) and len(at.parts) >= len(longest.parts):  # a later one lies over an earlier one
            longest, found = at, Place(device, root / real.relative_to(at))
    return found


def _mounts(pid: int) -> Iterator[tuple[str, str, str]]:
    """What this process sees: device, path in its file system, and where."""
    try:
        text = proc.read(pid, "mountinfo", LONGEST_MAP)
    except OSError:
        return
    for line in text.decode(errors="surrogateescape").split("\n"):
        words = line.split(" ", 5)  # proc(5): id, parent, device, root, mount point, the rest
        if len(words) > 4:
            yield words[2], _plain(words[3]), _plain(words[4])


def _plain(word: str) -> str:
    """The kernel writes spaces and the like as octal numbers there."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), word) if "\\" in word else word


def about(found: Mapping[str, Any]) -> dict[str, Any]:
    """What an inspection says of a container, by the fields of its record."""
    host = found["HostConfig"]
    return {
        "name": found["Name"].lstrip("/"),
        "image": found["Config"]["Image"],
        "command": [found["Path"], *found["Args"]] if found.get("Path") else [],
        "memory": host.get("Memory") or None,
        "cpus": host["NanoCpus"] / 1e9 if host.get("NanoCpus") else None,
    }


def terminal(found: Mapping[str, Any]) -> bool | None:
    """Whether its output is a terminal's; None if Docker does not give it back."""
    readable = found["HostConfig"].get("LogConfig", {}).get("Type") in READABLE
    return bool(found["Config"]["Tty"]) if readable else None


def _user(listed: Mapping[str, Any], mount: Mapping[str, Any]) -> MountUser:
    names = [name.lstrip("/") for name in listed.get("Names") or () if name.count("/") == 1]
    return MountUser(
        engine_id=listed["Id"],
        name=names[0] if names else listed["Id"][:12],
        image=listed["Image"],
        command=listed.get("Command") or "",
        labels=listed.get("Labels") or {},
        target=mount.get("Destination", ""),
        has_run=listed["State"] != "created",
    )


def volumes_of(container: Mapping[str, Any]) -> Iterable[str]:
    return (
        mount["Name"] for mount in container.get("Mounts", ()) if mount.get("Name") and mount["Destination"] == SOCKETS
    )


def _seconds(stamp: str) -> float:
    """Since the epoch. Long before it, if Docker says that it never was."""
    return parse_stamp(stamp) / 1e9
