"""What is made sure of before a scheduler starts; and every reason why it cannot, as a sentence for who starts it."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from django.db import DatabaseError

from scheduler import clock
from scheduler.engines.base import EngineError
from scheduler.gpus import NoGpus
from scheduler.store import node_lease
from web.audit import anchor
from web.schema import NewerDatabase, OlderDatabase

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
LET_GO = 2.0  # seconds within which what a killed scheduler was just starting has let go of its lock


class AlreadyRunning(Exception):
    """Another scheduler works in this GPUSHARE_HOME."""


class DatabaseAway(Exception):
    """The database is locked, full or not there; the message says so."""


class HomeFull(Exception):
    """Nothing can be written in GPUSHARE_HOME; the message says so."""


CANNOT_START = (
    NoGpus,
    AlreadyRunning,
    EngineError,
    DatabaseAway,
    HomeFull,
    NewerDatabase,
    OlderDatabase,
    node_lease.NameTaken,
)  # each with a sentence for whoever started it


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Two schedulers would both hand out the same memory. The kernel drops the lock however the process ends.

    A process that it was starting as it was killed still has it, until its exec. Raises AlreadyRunning.
    """
    path = home / anchor.LOCK
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as lock:
        os.fchmod(lock.fileno(), 0o600)  # whoever may open it could hold it, and no scheduler would start
        deadline = clock.monotonic() + LET_GO
        while not _locked(lock):
            if clock.monotonic() > deadline:
                raise AlreadyRunning(
                    f"Another scheduler already works in {home}, so this one cannot: both would hand out the same "
                    "memory. Use that one, or end it. A second appliance needs a folder of its own: GPUSHARE_HOME."
                )
            time.sleep(0.01)
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def writing_in_words() -> Iterator[None]:
    """What is done at a start, and fails for database or disk, fails with a sentence: DatabaseAway, HomeFull."""
    try:
        yield
    except DatabaseError as error:
        raise DatabaseAway(f"The database does not take what a start has to write: {error}.") from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise HomeFull(f"GPUSHARE_HOME does not take what a start has to write: {error.strerror}.") from error


def allow_many_descriptors() -> None:
    """Each session takes four; the usual soft limit of 1024 would do for 250 processes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
