"""Files that Docker shows in a container before its start: what an image preloads, and whether its program is there."""

import hashlib
import io
import logging
import posixpath
import tarfile
import threading
import uuid
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import docker
import docker.errors
from docker.utils import decode_json_header

from scheduler.engines.base import EngineError
from scheduler.engines.runtime_environment import keep_text
from web.spec.inside.reserved import PRELOAD, SHIM, kernels_own

log = logging.getLogger(__name__)

LARGEST = 64 << 10  # bytes; a list of libraries is far smaller
LINKS = 8  # followed, of one that leads to the next
USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # Docker's, where no PATH is set
KEPT = 1000  # programs that were found; each look takes some milliseconds
IMAGES = 100  # whose preloads are kept
# Go's os.ModeType without its permissions: a folder, a link, a device, a pipe, a socket, something irregular.
NO_FILE, FOLDER, LINK = 0x8F280000, 1 << 31, 1 << 27


class Preloads:
    """What images have in their own /etc/ld.so.preload, which ours covers in a container and so has to include.

    Docker shows a file of an image only in a container. One is made for that and never started: without our mount, and
    without a label, since an image can have any label. Its name says that it is ours, which no image can choose.

    Blocking; to be called from worker threads. What was found is kept by the image's id, which its content decides.

    `ours` is the file for images that have none. Those for others lie in a folder in `home`.
    """

    def __init__(self, api: docker.APIClient, home: Path, ours: Path) -> None:
        self._api, self._ours, self._folder = api, ours, home / "preloads"
        self._writing = threading.Lock()
        self._prefix = f"gpushare-look-{hashlib.sha256(str(home).encode()).hexdigest()[:12]}-"
        self._found: dict[str, bytes] = {}

    def take_away_left(self) -> None:
        """Removes what a scheduler has left that was killed during a look. Raises APIError."""
        for each in self._api.containers(all=True, filters={"name": f"^/{self._prefix}"}):
            self._remove(each["Id"])

    def file_for(self, image_id: str) -> Path:
        """Names our library, and after it what the image has in its own. Raises APIError, OSError."""
        if not (theirs := self._of(image_id)):
            return self._ours
        path = self._folder / hashlib.sha256(theirs).hexdigest()[:16]
        with self._writing:
            self._folder.mkdir(mode=0o755, exist_ok=True)
            keep_text(f"{SHIM}\n{theirs.decode(errors='replace')}", path)
        return path

    def _of(self, image_id: str) -> bytes:
        """The file's content; empty if the image has none."""
        if image_id not in self._found:
            body = {"Image": image_id, "Cmd": ["-"], "HostConfig": {"NetworkMode": "none"}}
            made = self._api.create_container_from_config(body, f"{self._prefix}{uuid.uuid4().hex}")  # type: ignore[no-untyped-call]
            if len(self._found) >= IMAGES:
                self._found.clear()
            try:
                self._found[image_id] = self._read(made["Id"])
            except NotShown as error:
                log.warning("%s Containers get what the shim needs, and none of the image's own.", error)
                return b""
            finally:
                self._remove(made["Id"])
        return self._found[image_id]

    def _remove(self, engine_id: str) -> None:
        try:
            self._api.remove_container(engine_id, v=True)
        except docker.errors.APIError as error:  # busy: the next start takes it away
            log.warning("What was made to look into an image stays for now (%s): %s", engine_id[:12], error)

    def _read(self, engine_id: str) -> bytes:
        path = PRELOAD
        for _ in range(LINKS):
            found = look(self._api, engine_id, path)
            if found is None:
                return b""
            if found["mode"] & LINK and found["linkTarget"]:
                path = found["linkTarget"]
            elif found["mode"] & NO_FILE or found["size"] > LARGEST:
                break
            else:
                return self._content(engine_id, path)
        log.warning("An image's own %s is not a short file: containers do not get it.", PRELOAD)
        return b""

    def _content(self, engine_id: str, path: str) -> bytes:
        pieces, _ = self._api.get_archive(engine_id, path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
            file = tar.extractfile(next(iter(tar)))
            assert file is not None, "a look has shown that it is a file"
            return file.read()


class NotShown(Exception):
    """Docker did not say whether a file is there."""


def look(api: docker.APIClient, engine_id: str, path: str) -> dict[str, Any] | None:
    """What kind of file there is in a container: `mode` is Go's, `linkTarget` a full path. None if there is none.

    Raises NotShown.
    """
    address = f"{api.base_url}/v{api.api_version}/containers/{engine_id}/archive"
    with api.head(address, params={"path": path}, timeout=api.timeout) as answer:
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            with api.get(address, params={"path": path}, timeout=api.timeout, stream=True) as said:  # HEAD has no words
                if said.status_code != 200 and "too many links" in said.text:
                    return None  # they lead in a circle
            raise NotShown(f"Docker does not show {path} in a container (status {answer.status_code}).")
        found: dict[str, Any] = decode_json_header(answer.headers["X-Docker-Container-Path-Stat"])
        return found


class Programs:
    """Whether the program that a container is to run is in it, looked for as runc would look for it.

    Docker's init begins in any case, and says only in the container's output that it found no program; and runc's words
    for a folder and for a file that is not executable are the same. Blocking; to be called from worker threads.
    """

    def __init__(self, api: docker.APIClient, *, toolkit: bool) -> None:
        """`toolkit`: NVIDIA's Container Toolkit works on each container as it begins."""
        self._api, self._toolkit = api, toolkit
        self._found: set[Hashable] = set()

    def require(
        self, engine_id: str, command: Sequence[str], *, path: str | None, folder: str, known_by: Hashable
    ) -> None:
        """Looks in a container that has not begun. `folder`: its working directory. Raises EngineError.

        Containers of the same `known_by` have the same files: what was found is not looked for again.
        """
        if not command or (command[0], path, folder, known_by) in self._found:
            return
        program = command[0]
        places = [posixpath.join(folder or "/", program)] if "/" in program else _searched(path, folder, program)
        seen = [self._kind(engine_id, place) for place in places]
        if "program" not in seen:
            raise _refused(program, next((kind for kind in seen if kind), ""), in_path="/" not in program)
        if len(self._found) >= KEPT:
            self._found.clear()
        self._found.add((program, path, folder, known_by))

    def _kind(self, engine_id: str, place: str) -> str:
        """`program` where it is one, or cannot be looked at; what else is there; empty if nothing is."""
        for _ in range(LINKS):
            if kernels_own(place):
                return "program"  # /proc is there only once it runs
            try:
                found = look(self._api, engine_id, place)
            except NotShown as error:
                log.warning("%s", error)
                return "program"
            if found is None:
                # NVIDIA's toolkit brings its own programs, such as nvidia-smi, as the container begins.
                return "program" if self._toolkit and posixpath.basename(place).startswith("nvidia-") else ""
            if found["mode"] & FOLDER:
                return "folder"
            if not (found["mode"] & LINK and found["linkTarget"]):
                return "program" if found["mode"] & (NO_FILE | 0o111) else "file"
            place = found["linkTarget"]
        return ""  # links that lead in a circle


def _searched(path: str | None, folder: str, program: str) -> list[str]:
    return [posixpath.join(folder or "/", each, program) for each in (USUAL if path is None else path).split(":")]


def _refused(program: str, kind: str, *, in_path: bool) -> EngineError:
    match kind:
        case "folder":
            message, code = f"{program!r} is a folder in the image, and no program.", "cannot_execute"
        case "file":
            message, code = f"{program!r} is in the image, but it is not executable.", "cannot_execute"
        case _:
            where = "in any folder of its PATH" if in_path else "there"
            message, code = f"The image has no program {program!r} {where}.", "cannot_start"
    return EngineError(message, code=code, status=400, field="command")
