"""The folder that a container gets by its volume: its socket, and the shim.

Docker mounts it writable unless asked otherwise, and who is root in a container is root in that folder: it may
put links and whole trees there. So nothing of the scheduler's own lies in it. The socket is a second name (a hard link)
of the one that the scheduler listens at, in a folder of its own; the shim is a copy for this container alone. What is
put in is put in by a descriptor of the folder, by calls that follow no link, and what it holds at the end is taken away
by a program that has time, follows no link, and does not mind how deep a tree is (shutil.rmtree fails at a thousand).
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Collection
from pathlib import Path

from scheduler.sessions.server import SOCKET_NAME

SHIM_NAME = "libgpushare.so"

log = logging.getLogger(__name__)


class Folders:
    def __init__(self, place: Path, shim: Path) -> None:
        """`shim`: the file to copy."""
        self._place, self._shim = place, shim
        self._going: set[str] = set()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.chmod(0o700)

    def of(self, container: str) -> Path:
        return self._place / container

    def give(self, container: str, sockets: Path) -> Path:
        """Makes the folder of a container, or renews its socket. `sockets`: where that lies. Raises OSError."""
        folder = self.of(container)
        folder.mkdir(mode=0o755, exist_ok=True)
        there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _unlink(f"{SOCKET_NAME}.new", there)
            os.link(sockets / SOCKET_NAME, f"{SOCKET_NAME}.new", dst_dir_fd=there, follow_symlinks=False)
            os.rename(f"{SOCKET_NAME}.new", SOCKET_NAME, src_dir_fd=there, dst_dir_fd=there)
            _unlink(f"{SOCKET_NAME}.new", there)  # a rename between two names of one file does nothing
            self._copy_shim(there)
        finally:
            os.close(there)
        return folder

    def _copy_shim(self, there: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            copy = os.open(SHIM_NAME, flags, 0o555, dir_fd=there)
        except FileExistsError:
            return  # programs have it mapped
        try:
            with self._shim.open("rb") as shim:
                os.sendfile(copy, shim.fileno(), 0, os.fstat(shim.fileno()).st_size)
            os.fchmod(copy, 0o755)
        finally:
            os.close(copy)

    async def take_away(self, container: str) -> None:
        """Unless that is under way. Who has put a million files there waits for it alone."""
        if container in self._going:
            return
        self._going.add(container)
        try:
            await take_tree_away(self.of(container))
        finally:
            self._going.discard(container)

    def left_by(self, living: Collection[str]) -> list[str]:
        """Containers whose folders are there, of those that are not among these."""
        return [folder.name for folder in self._place.iterdir() if folder.name not in living]


async def take_tree_away(folder: Path) -> None:
    """Whatever others have put there, as far as it can be."""
    nothing = asyncio.subprocess.DEVNULL
    words = ("rm", "-rf", "--one-file-system", "--", str(folder))
    try:
        taking = await asyncio.create_subprocess_exec(*words, stdin=nothing, stdout=nothing, stderr=nothing)
        await taking.wait()
    except OSError as error:
        log.error("%s cannot be taken away: %s", folder, error)


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
