"""The SQLite database of `make up`: in a folder of its own, since SQLite makes files beside it.

Who may write the database must be able to write that folder, and so nothing else lies there.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

FOLDER = "database"
NAME = "gpushare.sqlite3"
FILES = (NAME, f"{NAME}-wal", f"{NAME}-shm")
UNUSED = (
    60706  # from here on no distribution gives numbers away, and it exists where a container has only 65,536 of them
)
ACCESS_LIST = "system.posix_acl_access"


@dataclass(frozen=True, slots=True)
class Writer:
    """A user, other than this process, who can write a folder."""

    uid: int
    gid: int


def writer(folder: int) -> Writer | None:
    """As root: as whom files in this folder (a descriptor) have to be opened; None: nobody but root can write them.

    Raises ImproperlyConfigured if there is no such user: everybody can write there.
    """
    found = os.fstat(folder)
    if os.geteuid() != 0:
        return None
    if found.st_uid:
        return Writer(found.st_uid, found.st_gid)
    if found.st_mode & 0o002 or (found.st_mode & 0o020 and _has_access_list(folder)):
        raise ImproperlyConfigured(
            f"Users other than root can write in {os.readlink(f'/proc/self/fd/{folder}')}, the folder of the database. "
            "Root does not open a database there. Move it to a folder of its own, which belongs to one user."
        )
    if found.st_mode & 0o020 and found.st_gid:  # as an earlier release left it: the web user is of this group
        return Writer(UNUSED, found.st_gid)
    return None


def _has_access_list(folder: int) -> bool:
    try:
        return ACCESS_LIST in os.listxattr(folder)
    except OSError:  # a file system that has none
        return False


def writer_of(folder: Path) -> Writer | None:
    """`writer` of a path. Raises OSError as well."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return writer(descriptor)
    finally:
        os.close(descriptor)


def place(home: Path) -> Path:
    """Its path; moved there if an earlier release kept it in `home`. Raises ImproperlyConfigured if it is in use."""
    path, before = home / FOLDER / NAME, home / NAME
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not path.exists() and before.exists():
        with _alone(home):
            if before.exists():
                _move(before, path)
    if writer_of(path.parent) is None:
        path.touch(mode=0o600)  # it holds people's passwords (hashed) and their containers' environment
    return path


def _move(before: Path, path: Path) -> None:
    """In one step: without its journal the database is one file. SQLite gives that up only for whoever is alone."""
    for folder in (before.parent, path.parent):
        if writer_of(folder):
            raise ImproperlyConfigured(
                f"{before} has to move to {path}, and another user can write in {folder}: root does not open a "
                "database there. Start once as the owner of that folder, or give the folder to root (chown root)."
            )
    try:
        with closing(sqlite3.connect(f"{before.as_uri()}?mode=rw", uri=True, timeout=1)) as database:
            database.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        raise ImproperlyConfigured(
            f"{before} has to move to {path}, which cannot be done now: {error}. "
            "Is the appliance still running? Stop it, and start again."
        ) from None
    before.rename(path)
    for folder in (path.parent, before.parent):
        _sync(folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of several commands that start at once, one at a time."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.fsync(descriptor)
    os.close(descriptor)
