"""Who answers strangers: where root starts the appliance, its web process is a user without rights.

What that user may touch is short. It writes the database and hints, reads the containers' output, rings at their
consoles and leads to other hosts: five folders of GPUSHARE_HOME, which belong to its group (FOLDERS). It reads the
program that it is. The key that signs sessions it has in its memory, from before it was nobody.

The folder of the database belongs to that user. Root opens no database there: a process of that user does so for it
(appliance/sqlite_by_owner).

The web process has a view of the file system of its own. A checkout or a home may lie where only its owner may pass
(/root, /home/ada): there it sees those folders and nothing else. And in this view the name of the database is a mount,
which only root can remove.
"""

import ctypes
import grp
import logging
import os
import pwd
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import django
from django.core.exceptions import ImproperlyConfigured

from appliance.database import FILES, writer_of
from appliance.database import FOLDER as DATABASE
from appliance.running.parts import CannotStart

log = logging.getLogger(__name__)

USUAL = "gpushare-web"
UNUSED = 60706  # from here on no distribution gives numbers away; and a container with only 65,536 of them has it
# setgid: so is what is made there
FOLDERS = {DATABASE: 0o2770, "hints": 0o2770, "logs": 0o2750, "consoles": 0o2750, "nodes": 0o2770}

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
NOTHING_MORE = 2 | 4 | 8  # nosuid, nodev, noexec
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
READS, WRITES, PASSES = 4, 2, 1  # of the permission bits

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class WebUser:
    name: str
    uid: int
    gid: int
    given: bool = True  # by somebody, who wants to hear that it cannot be

    def may(self, path: Path, bits: int) -> bool:
        found = path.stat()
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid == self.gid else 0
        return found.st_mode >> shift & bits == bits


def find(given: str) -> WebUser | None:
    """Who that is; None: whoever started it. Raises ImproperlyConfigured."""
    if os.geteuid() != 0 or given == "root":
        return None
    try:
        known = pwd.getpwuid(int(given)) if given.isdecimal() else pwd.getpwnam(given or USUAL)
    except KeyError:
        if given:
            raise ImproperlyConfigured(f"GPUSHARE_WEB_USER is {given!r}, and this host has no such user.") from None
        number = next(number for number in count(UNUSED) if _is_unused(number))
        return WebUser(str(number), number, number, given=False)
    return WebUser(known.pw_name, known.pw_uid, known.pw_gid, bool(given)) if known.pw_uid else None


def _is_unused(number: int) -> bool:
    """Not `nobody`, whom other services are, too: they could read the database and signal the web process."""
    for look in (pwd.getpwuid, grp.getgrgid):
        try:
            look(number)
        except KeyError:
            continue
        return False
    return True


def share(home: Path, user: WebUser) -> None:
    """As root: makes the folders of the web user's group, with what an earlier start left there. Raises CannotStart."""
    for name, mode in FOLDERS.items():
        folder = home / name
        folder.mkdir(mode=0o700, exist_ok=True)
        owner = user.uid if name == DATABASE else 0  # root then opens the database by a process of that user
        found = folder.stat()
        if (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) != (owner, user.gid, mode):
            if not mode & 0o020:  # only root has written there, so what lies there is what it seems
                for path in folder.iterdir():
                    os.chown(path, -1, user.gid, follow_symlinks=False)
            os.chown(folder, owner, user.gid)
            folder.chmod(mode)  # last: a start that was cut off does all of it again
    for path in (home / DATABASE / name for name in FILES):
        if os.path.lexists(path):
            _share_file(path, user)


def _share_file(path: Path, user: WebUser) -> None:
    """The web user made it or could have put another in its place: no link is followed, no other file's mode set."""
    if path.is_symlink():
        raise CannotStart(f"{path} is a link: it has to be a file of its own.")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise CannotStart(f"{path} has another name, or is no file: it has to be a file of its own.")
        os.fchown(descriptor, user.uid, user.gid)
        os.fchmod(descriptor, 0o660)
    finally:
        os.close(descriptor)


def become(user: WebUser, home: Path, database: Path | None, program: Path) -> None:
    """In the web process, for the rest of its life. `database`: a file, if it is one. Raises CannotStart."""
    before = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        reads = [
            program / "manage.py",
            *sorted(program.glob(".build/vendor/*/*.js"))[:1],
            Path(os.__file__),
            Path(django.__file__),
        ]
        _check(user, READS, reads)
        if database:
            with _not_its_own_work(database):
                _check_database(user, database)
        _look_from_afar(user, [program, *_python()], home, database)
        if database:
            with _not_its_own_work(database):  # its name cannot be given to another file
                _mount(str(database), database, "none", MS_BIND)
    except OSError as error:
        if user.given:
            raise CannotStart(
                f"The web process cannot be {user.name} ({error}). GPUSHARE_WEB_USER=root lets it be root."
            ) from None
        _libc.setns(before, CLONE_NEWNS)  # without what was mounted until it failed
        os.fchdir(root)  # that led to the first of all roots, which in a chroot is another
        os.chroot(".")
        log.warning("the web process stays root: no account without rights can be used here (%s)", error)
        return
    finally:
        os.close(before)
        os.close(root)
    os.setsid()  # away from the terminal of whoever started it
    for capability in range(64):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setgid(user.gid)
    os.setuid(user.uid)
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _python() -> list[Path]:
    return [Path(path) for path in (sys.base_prefix, sys.prefix, *sys.path) if path and Path(path).is_dir()]


def _check(user: WebUser, bits: int, paths: Iterable[Path]) -> None:
    """Raises PermissionError. Whether it may pass the folders above does not matter: see _look_from_afar."""
    for path in paths:
        if not user.may(path, bits):
            raise PermissionError(f"it may not {'write' if bits & WRITES else 'read'} {path}")


@contextmanager
def _not_its_own_work(database: Path) -> Iterator[None]:
    """In the web user's folder a failure may be that user's work: then this process does not stay root.

    Raises CannotStart for an OSError there.
    """
    try:
        theirs = writer_of(database.parent)
    except ImproperlyConfigured as error:
        raise CannotStart(str(error)) from None
    try:
        yield
    except OSError as error:
        if theirs:
            raise CannotStart(f"The web process cannot open the database: {error}.") from None
        raise


def _check_database(user: WebUser, database: Path) -> None:
    """Raises OSError."""
    _check(user, READS | WRITES, [database.parent])
    if not stat.S_ISREG(database.lstat().st_mode):
        raise OSError(f"{database} is not a file of its own")
    _check(user, READS | WRITES, [database])


def _look_from_afar(user: WebUser, program: Sequence[Path], home: Path, database: Path | None) -> None:
    """This process's own view, in which the user reaches all of these. Raises OSError."""
    if _libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no mounts of its own")
    _mount("none", Path("/"), "none", MS_REC | MS_SLAVE)  # what the host mounts later is seen here, ours is not there
    named = {*program, *(home / name for name in FOLDERS), *([database.parent] if database else [])}
    folders = [*sorted({folder.resolve() for folder in named}), *sorted(named)]  # a link is there if what it means is
    originals = {
        folder: os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for folder in dict.fromkeys(folders)
    }
    os.umask(0o022)  # or it could not pass what is made here
    for folder, original in originals.items():
        above = [parent for parent in reversed(folder.parents) if parent.exists()]
        if closed := next((parent for parent in above if not user.may(parent, PASSES)), None):
            _mount("tmpfs", closed, "tmpfs", NOTHING_MORE, "size=64k,mode=0755")
        if not folder.exists():
            folder.mkdir(0o755, parents=True)
            _mount(f"/proc/self/fd/{original}", folder, "none", MS_BIND | MS_REC)
        os.close(original)


def _mount(source: str, target: Path, kind: str, flags: int, data: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), data.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"{target} cannot be mounted: {os.strerror(number)}")
