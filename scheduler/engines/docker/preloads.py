"""What an image has in its own /etc/ld.so.preload, which ours covers in a container and so has to include.

Docker shows a file of an image only in a container. One is made for that and never started: without our mount, and
without a label, since an image can have any label. Its name says that it is ours, which no image can choose.
"""

from __future__ import annotations

import hashlib
import io
import logging
import tarfile
import threading
import uuid
from pathlib import Path
from typing import Any

import docker
import docker.errors
from docker.utils import decode_json_header

from scheduler.engines.outfit import keep_text
from web.spec.reserved import PRELOAD, SHIM

log = logging.getLogger(__name__)

LARGEST = 64 << 10  # bytes; a list of libraries is far smaller
LINKS = 8  # followed, of one that leads to the next
# Go's os.ModeType without its permissions: a folder, a link, a device, a pipe, a socket, something irregular.
NO_FILE, LINK = 0x8F280000, 1 << 27


class Preloads:
    """Blocking; to be called from worker threads. What was found is kept by the image's id, which its content decides.

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
            try:
                self._found[image_id] = self._read(made["Id"])
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
            found = self._look(engine_id, path)
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

    def _look(self, engine_id: str, path: str) -> dict[str, Any] | None:
        """What kind of file it is; None if there is none."""
        address = f"{self._api.base_url}/v{self._api.api_version}/containers/{engine_id}/archive"
        with self._api.head(address, params={"path": path}, timeout=self._api.timeout) as answer:
            if answer.status_code != 200:
                if answer.status_code != 404:
                    log.warning("Docker does not show %s of an image (status %s).", path, answer.status_code)
                return None
            found: dict[str, Any] = decode_json_header(answer.headers["X-Docker-Container-Path-Stat"])
            return found

    def _content(self, engine_id: str, path: str) -> bytes:
        pieces, _ = self._api.get_archive(engine_id, path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
            file = tar.extractfile(next(iter(tar)))
            assert file is not None, "a look has shown that it is a file"
            return file.read()
