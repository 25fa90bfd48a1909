"""What is made sure of before a scheduler starts; and every reason why it cannot, as a sentence for who starts it."""

import asyncio
import errno
import fcntl
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from django.conf import settings
from django.db import DatabaseError

from scheduler import clock
from scheduler.core import policies
from scheduler.engines.base import Engine, EngineAway, EngineError
from scheduler.engines.choose import choose
from scheduler.engines.runtime_environment import RuntimeEnvironment, Simulation
from scheduler.gpus import Gpus, NoGpus
from scheduler.parts import PERIODS
from scheduler.store import Store, node_lease
from web.audit import anchor
from web.schema import NewerDatabase, OlderDatabase

log = logging.getLogger(__name__)

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


async def policy(store: Store) -> str:
    """What an admin chose, if there is one of that name still; else what the setting says."""
    asked = await store.records.policy_asked()
    if asked and asked not in policies.POLICIES:
        log.warning("there is no policy %r any more; it is %s now", asked, settings.GPUSHARE_POLICY)
    return asked if asked in policies.POLICIES else str(settings.GPUSHARE_POLICY)


async def find_engine(store: Store, gpus: Gpus, own: Callable[[RuntimeEnvironment], Engine | None]) -> Engine:
    """Waits for the engine that was asked for, and says so meanwhile. `own`: that of a plug-in, if it brings one."""
    simulation = Simulation(settings.GPUSHARE_BUILD / "sim", gpus.simulation) if gpus.simulation else None
    while True:
        try:
            engine = await choose(simulation, await store.records.living_by_engine(), own)
            await _speak_for(store, engine)
        except EngineAway as error:
            log.warning("%s", error)
            store.node(seen_at=clock.now(), engine_error=str(error)[:500])
            await store.durable()
            await asyncio.sleep(PERIODS["sign of life"])
        else:
            store.node(engine=engine.name, engine_error="", outdated=list(engine.outdated))
            return store.figures.watch(engine)


async def _speak_for(store: Store, engine: Engine) -> None:
    """Says to all whether launches come here, to be given on. Raises EngineAway."""
    if settings.GPUSHARE_AUDIT_KEY:  # a host with a role of its own cannot say so
        return
    if engine.placer is None:
        store.node(placer="")
    elif why_not := await store.speak_for(engine.placer.whole):
        await engine.close()
        raise EngineAway(why_not)
