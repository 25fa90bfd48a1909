"""Folders of the host for containers: found without following a link, and held until Docker has mounted them.

Docker takes a path and follows it when it starts the container, a good while after anybody could look at it: a folder
that its owner exchanges for a link in between would show the container what root may read. So each folder is walked to
step by step, no step a link, and what is found stays open; then *that* is mounted, at a place that only root can
change, and Docker is given this place.

    with held(home, launch.id, sources) as places:    # source → the path for Docker
        …                                             # create and start

The places are mounts inside a file system of the launch's own, which goes once the container has started: what a
container has mounted is a mount of its own by then. Should Docker live in another mount namespace, it finds no such
place, and refuses; an ended container that is started again by hand is refused likewise.
"""

import ctypes
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from scheduler.engines.base import EngineError
from web.spec.inside.mounts import own_roots

# <sys/mount.h>, <bits/…/umount.h>
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8

Opener = Callable[[str], int]

_libc = ctypes.CDLL(None, use_errno=True)


def find(source: str, roots: Sequence[Path], owner: str) -> int:
    """A descriptor (O_PATH) of the folder or file `source`, a normal path below one of the roots; the caller closes it.

    What an admin has written of a root is followed as it is; from `{user}` on, and below the root, nothing is. Raises
    EngineError.
    """
    for base in sorted(_bases(source, roots, owner), key=lambda base: len(base.parts), reverse=True):
        return _walk(base, Path(source).relative_to(base).parts)
    raise _refused(f"{source} is outside the folders that volumes may come from.")


def _bases(source: str, roots: Sequence[Path], owner: str) -> Iterator[Path]:
    """How far the path is an admin's word, of each root that it lies in."""
    for root in roots:
        if any(Path(source).is_relative_to(own) for own in own_roots([root], owner)):
            yield Path(*takewhile(lambda part: "{user}" not in part, root.parts))


def _walk(base: Path, parts: Iterable[str]) -> int:
    path = base
    with ExitStack() as opened:
        try:
            found = os.open(base, os.O_PATH | os.O_CLOEXEC)
            opened.callback(os.close, found)
            for part in parts:
                path /= part
                found = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=found)
                opened.callback(os.close, found)
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    raise _refused(f"{path} is a link and may lead outside the folders that volumes may come from: "
                                   "name the place that it leads to.")  # fmt: skip
        except (FileNotFoundError, NotADirectoryError):
            message = f"{path} does not exist on the host."
            raise EngineError(message, code="volume_missing", status=400, field="volumes") from None
        if stat.S_IFMT(os.fstat(found).st_mode) not in (stat.S_IFDIR, stat.S_IFREG):
            raise _refused(f"{path} is neither a folder nor a file.")
        return os.dup(found)


def _refused(message: str) -> EngineError:
    return EngineError(message, code="bad_volume", status=400, field="volumes")


@contextmanager
def held(places: Path, launch: str, sources: Iterable[str], find: Opener) -> Iterator[Mapping[str, str]]:
    """Inside, each source is mounted at the path that it maps to, below `places`. Raises EngineError."""
    with ExitStack() as stack:
        found = {source: find(source) for source in dict.fromkeys(sources)}
        for each in found.values():
            stack.callback(os.close, each)
        yield _mount_all(stack, places / launch, found) if found else {}


def _mount_all(stack: ExitStack, place: Path, found: Mapping[str, int]) -> Mapping[str, str]:
    """Mounts what these lead to below `place`: source → where. All are taken away again when the stack ends."""
    _take_away(place)
    place.mkdir(mode=0o700, parents=True)
    stack.callback(_take_away, place)
    try:
        _mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=64k,mode=711")
        return {source: _mounted(each, place / str(n)) for n, (source, each) in enumerate(found.items())}
    except OSError as error:
        message = f"This scheduler cannot mount folders of the host ({error}): only named volumes can be given."
        raise EngineError(message, code="no_folders", status=409, field="volumes") from None


def _mounted(found: int, target: Path) -> str:
    if stat.S_ISDIR(os.fstat(found).st_mode):
        target.mkdir(mode=0o700)
    else:
        target.touch(mode=0o600)
    _mount(f"/proc/self/fd/{found}", target, None, MS_BIND | MS_REC)
    # What is mounted below it is the host's as well: taking ours away must not take that away there.
    _mount(None, target, None, MS_PRIVATE | MS_REC)
    return str(target)


def take_away_all(places: Path) -> None:
    """Takes away the mounts that a scheduler that was killed has left."""
    for place in places.iterdir() if places.is_dir() else ():
        _take_away(place)


def _take_away(place: Path) -> None:
    with suppress(OSError):  # nothing is mounted there
        while True:
            _mount(None, place, None, MS_PRIVATE | MS_REC)
            _libc.umount2(os.fsencode(place), MNT_DETACH | UMOUNT_NOFOLLOW)
    with suppress(FileNotFoundError):
        place.rmdir()


def _mount(source: str | None, target: Path, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2). Raises OSError."""
    words = [None if word is None else os.fsencode(word) for word in (source, str(target), kind, data)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(target))


def may_mount(places: Path) -> bool:
    """Whether this process may make mounts at all."""
    probe = places / "probe"
    places.mkdir(mode=0o711, parents=True, exist_ok=True)
    probe.mkdir(mode=0o700, exist_ok=True)
    try:
        _mount("tmpfs", probe, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k")
    except OSError:
        return False
    finally:
        _take_away(probe)
    return True
