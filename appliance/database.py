"""The SQLite database of `make up`: in a folder of its own, since SQLite makes files beside it.

Who may write the database must be able to write that folder, and so nothing else lies there.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

FOLDER = "database"
NAME = "gpushare.sqlite3"
FILES = (NAME, f"{NAME}-wal", f"{NAME}-shm")
ACCESS_LIST = "system.posix_acl_access"


@dataclass(frozen=True, slots=True)
class Writer:
    """A user, other than this process, who can write a folder."""

    uid: int
    gid: int


def writer(folder: int) -> Writer | None:
    """As root: as whom files in this folder (a descriptor) have to be opened; None: nobody but root can write them.

    Raises ImproperlyConfigured if several users can write there.
    """
    found = os.fstat(folder)
    if os.geteuid() != 0:
        return None
    if found.st_uid:
        return Writer(found.st_uid, found.st_gid)
    if found.st_mode & 0o002 or (found.st_mode & 0o020 and (found.st_gid or _has_access_list(folder))):
        raise ImproperlyConfigured(
            f"Users other than root can write in {os.readlink(f'/proc/self/fd/{folder}')}, the folder of the database. "
            "Root does not open a database there. Move it to a folder of its own, which belongs to one user."
        )
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
    """Its path. Raises ImproperlyConfigured as `writer` does."""
    path = home / FOLDER / NAME
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if writer_of(path.parent) is None:
        path.touch(mode=0o600)  # it holds people's passwords (hashed) and their containers' environment
    return path
