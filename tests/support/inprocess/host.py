"""A whole host in the test's own process, on virtual time: a real scheduler, and around it what a host is made of."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import connection, connections

from scheduler import clock, proc
from scheduler.monitors.verifying import Verifying
from scheduler.parts import ONCE, PERIODS
from scheduler.sessions import looks
from scheduler.worker import Scheduler
from tests.support import own_home
from tests.support.host import Host, query
from tests.support.inprocess.cards import CONTEXT, Cards
from tests.support.inprocess.clockwork import VirtualClock, VirtualLoop
from tests.support.inprocess.driver import Driver, access
from tests.support.inprocess.engine import InProcessEngine
from tests.support.inprocess.kernel import Kernel
from tests.support.inprocess.process import Machine, Process, Program
from tests.support.tables import begin_with_tables
from web.models import Claim, Command, Container

LOOK, LONGEST_LOOK, PATIENCE = 0.02, 0.5, 120.0  # virtual seconds: from one look to the next, and of a wait that fails
HARDLY_EVER = 60.0  # seconds: the period of a part that a test asks for by itself
UNSYNCED = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;"  # no power cut is survived
T = TypeVar("T")


class InProcess(Host):
    """As `Host`, and what it is made of is in reach: `engine`, `driver`, `cards`, `kernel`, `clock`.

    The first word of a launch may be a program itself: `async def program(process, *words)`.
    """

    workload = Path("workload")

    def __init__(self, home: Path, gpus: str = "sim:1x5GiB") -> None:
        super().__init__(home)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "the test has to ask for `virtual_time`"
        self.loop, self.clock, self.kernel = loop, VirtualClock(loop), Kernel(home / "threads")
        clock.use(self.clock)
        self.driver = Driver(self.kernel, kill=lambda pid: self.engine.kill_process(pid))
        self.cards = self.driver.cards = Cards(gpus, self.driver.stands)
        self.kernel.computed = self.cards.had
        self.engine = InProcessEngine(Machine(self.kernel, self.driver, self.cards))

    async def start(self) -> Scheduler:
        await self.engine.start()
        self.given = {
            "engine": self.engine, "gpus": self.cards, "card": access(self.driver, self.home), "clock": self.clock,
            "processes": self.kernel,
        }  # fmt: skip
        return await super().start()

    def writes_no_more(self) -> None:
        """As if its scheduler were killed now; what it still does outside the database is done."""

        async def lost(*_: object) -> None: ...

        self.up.store._write = lost  # type: ignore[method-assign]

    async def crash(self) -> None:
        """Stops a scheduler that has written nothing since a moment ago, as one that was killed."""
        self.writes_no_more()
        await self.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def close(self) -> None:
        await super().close()
        await self.driver.close()
        for failure in self.engine.failures:
            raise failure

    # ---- waiting ----

    async def eventually(self, condition: Callable[[], T | Awaitable[T]], within: float = PATIENCE) -> T:
        """The first true value of `condition`, which may be a coroutine function. Raises TimeoutError."""
        until, pause = self.loop.time() + within, LOOK
        while True:
            value = condition()
            if isinstance(value, Awaitable):
                value = await value
            if value:
                return value
            if self.loop.time() > until:
                raise TimeoutError(f"did not come about within {within:g} s of virtual time")
            await asyncio.sleep(pause)
            pause = min(1.3 * pause, LONGEST_LOOK)

    async def settle(self) -> None:
        """Each periodic part once, instead of its period; then what was recorded is written."""
        up = self.up
        await asyncio.sleep(LOOK)
        await up.measure.once()
        await up.computing.look()
        for part in up._parts():
            if (part.every or PERIODS.get(part.name, ONCE)) < HARDLY_EVER and (looked := part.call()) is not None:
                await looked
        await up.store.flush()

    async def passes(self, seconds: float) -> None:
        """So many seconds are over at once, and then all have looked."""
        self.loop.leap(seconds)
        self.up.watchdog._note()  # nothing came late
        await self.settle()

    async def answer(self, command: Command, within: float = 0.0) -> Command:
        async def answered() -> Command | None:
            row = await query(Command.objects.select_related("container").get, pk=command.pk)
            return row if row.done_at is not None else None

        return await self.eventually(answered)  # type: ignore[return-value]

    async def until(self, container: Container, state: str, within: float = 0.0) -> Container:
        async def so() -> Container | None:
            row = await self.get(container)
            return row if row.state == state else None

        try:
            return await self.eventually(so)  # type: ignore[return-value]
        except TimeoutError:
            row = await self.get(container)
            raise AssertionError(f"{row.name} is {row.state}: {self.log(container)}") from None

    async def says(self, container: Container, words: str) -> None:
        await self.eventually(lambda: words in self.log(container))

    async def returned(self, container: Container) -> Claim:
        await self.eventually(lambda: str(container.pk) not in self.up.broker.live_containers)
        self.up.report.publish()
        await self.up.store.flush()
        return await self.claim(container)

    # ---- what runs ----

    async def start_launch(self, *words: str | Program, **fields: Any) -> tuple[Container, Command]:
        return await super().start_launch(*map(self._word, words), **fields)

    def _word(self, word: str | Program) -> str:
        if isinstance(word, str):
            return word
        self.engine.programs[word.__name__] = word
        return word.__name__

    def processes(self, container: Container) -> list[Process]:
        return list(self.engine.containers[str(container.pk)].processes)

    def process(self, container: Container) -> Process:
        """Its first one."""
        return self.engine.containers[str(container.pk)].first

    def outside(self, size: int, gpu: int = 0) -> int:
        """A process of nobody's that takes so much of a card, with its context. Its pid: `ends_outside` ends it."""
        pid = self.kernel.begin()
        assert self.cards.take(list(self.cards.cards)[gpu], pid, size + CONTEXT)
        return pid

    def ends_outside(self, pid: int) -> None:
        self.kernel.end(pid)
        self.cards.end(pid)

    def had(self, container: Container) -> float:
        """Seconds that its processes that live have had of cards."""
        return sum(self.cards.had(process.pid) for process in self.processes(container))

    async def shares(self, *containers: Container, seconds: float) -> list[float]:
        """The part of the card's time that each has of so many seconds."""
        before = [self.had(each) for each in containers]
        await asyncio.sleep(seconds)
        return [(self.had(each) - was) / seconds for each, was in zip(containers, before, strict=True)]


@contextlib.contextmanager
def fresh_database(file: Path) -> Iterator[None]:
    """A database of its own with the tables, for every thread; nothing has to be flushed after it."""
    begin_with_tables(file)
    settings, before = connection.settings_dict, connection.settings_dict["NAME"]
    connections.close_all()
    settings["NAME"] = str(file)
    options, settings["OPTIONS"] = settings["OPTIONS"], {**settings["OPTIONS"], "init_command": UNSYNCED}
    try:
        yield
    finally:
        connections.close_all()
        settings["NAME"], settings["OPTIONS"] = before, options


@pytest.fixture
def virtual_time() -> Iterator[None]:
    """The test runs in a `VirtualLoop` (tests/conftest.py)."""
    before = clock._source, proc._source
    yield
    clock.use(before[0])
    proc.use(before[1])


async def _no_process(_: Verifying) -> None:
    """It begins one, which test_verifying.py has."""


@contextlib.asynccontextmanager
async def a_host_inside(settings: Any, policy: str = "fifo", gpus: str = "sim:1x5GiB") -> AsyncIterator[InProcess]:
    """As `a_host`. The database is the test's."""
    settings.GPUSHARE_HOME = own_home.new_folder()
    settings.GPUSHARE_ENGINE, settings.GPUSHARE_POLICY = "process", policy
    host = InProcess(settings.GPUSHARE_HOME, gpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(looks, "_thread", host.loop)
        patch.setattr(Verifying, "_verify", _no_process)
        await host.start()
        try:
            yield host
        finally:
            await host.close()


@pytest.fixture
def database(django_db_blocker: Any) -> Iterator[None]:
    """Empty, and of this test alone."""
    with django_db_blocker.unblock(), fresh_database(own_home.new_folder() / "gpushare.sqlite3"):
        yield


@pytest.fixture
async def inprocess(virtual_time: None, database: None, settings: Any) -> AsyncIterator[InProcess]:
    """A host with one card of 5 GiB, in this process and on virtual time."""
    async with a_host_inside(settings) as host:
        yield host
