"""The SQLite database of `make up`: in a folder of its own, since SQLite makes files beside it.

Who may write the database must be able to write that folder, and so nothing else lies there.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

FOLDER = "database"
NAME = "gpushare.sqlite3"
FILES = (NAME, f"{NAME}-wal", f"{NAME}-shm")


def place(home: Path) -> Path:
    """Its path; moved there if an earlier release kept it in `home`. Raises ImproperlyConfigured if it is in use."""
    path, before = home / FOLDER / NAME, home / NAME
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not path.exists() and before.exists():
        with _alone(home):
            if before.exists():
                _move(before, path)
    path.touch(mode=0o600)  # it holds people's passwords (hashed) and their containers' environment
    return path


def _move(before: Path, path: Path) -> None:
    """In one step: without its journal the database is one file. SQLite gives that up only for whoever is alone."""
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
