"""A whole host for tests: a real scheduler in the test's event loop, local processes, a simulated card, real rows.

async def test_something(host):
    container = await host.launch("workload", "--bytes", "1GiB", gpu_memory=2 * GIB)
    await host.until(container, "exited")
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

import shim.sim
from scheduler.worker import Scheduler
from tests.support.eventually import PATIENCE, eventually
from web.models import AllocationEvent, Claim, Command, Container, Node, Swap

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / ".build"
MIB = 1 << 20
GIB = 1 << 30
T = TypeVar("T")
RUN = """
import os, django
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings")
django.setup()
from django.core.management import call_command
call_command("runscheduler")
"""


H = TypeVar("H", bound="Host")


async def query(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Runs a query outside the event loop, on a connection of its own."""
    result: T = await database_sync_to_async(function, thread_sensitive=False)(*arguments, **options)
    return result


class SeparateScheduler:
    """`manage.py runscheduler` as a process of its own, on the test's database: for killing it."""

    def __init__(self, home: Path, **environment: str) -> None:
        self._environment = {
            **os.environ,
            "GPUSHARE_HOME": str(home),
            "GPUSHARE_GPUS": "sim:1x5GiB",
            "GPUSHARE_ENGINE": "process",
            "GPUSHARE_POLICY": "fifo",
            "DATABASE_URL": f"sqlite:///{connection.settings_dict['NAME']}",
            **environment,
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns when it has shown a sign of life. Does nothing if it runs."""
        if self._process is not None and self._process.returncode is None:
            return
        begun = timezone.now()
        self._process = await asyncio.create_subprocess_exec(sys.executable, "-c", RUN, cwd=ROOT, env=self._environment)
        async with asyncio.timeout(PATIENCE):
            while not await query(Node.objects.filter(seen_at__gte=begun).exists):
                assert self._process.returncode is None, "it ended by itself"
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await asyncio.wait_for(self._process.wait(), PATIENCE)


async def _gone(worker: Process) -> None:
    """Who is within a call of the card's goes on after the scheduler's end; here nobody outlives the test's loop."""
    try:
        await asyncio.wait_for(worker.wait(), 10)
    except TimeoutError:
        worker.kill()
        await worker.wait()


class Host:
    """One host. `start` and `stop` the scheduler as often as the test wants; containers live on.

    `image` is what `launch` takes if it is given no other; it has the demo's program at `workload`, and others in
    `programs`.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.scheduler: Scheduler | None = None
        self._stop = asyncio.Event()
        self._run: asyncio.Task[None] | None = None

    workload = BUILD / "workload"
    image = "local"
    programs = BUILD
    given: Mapping[str, Any] = {}  # to its scheduler, in place of this machine's

    @property
    def up(self) -> Scheduler:
        assert self.scheduler is not None
        return self.scheduler

    async def start(self) -> Scheduler:
        self.scheduler, self._stop = Scheduler(**self.given), asyncio.Event()
        self._run = asyncio.create_task(self.scheduler.run(self._stop))
        started = asyncio.create_task(self.scheduler.started.wait())
        await asyncio.wait([started, self._run], return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        if self._run.done():
            self._run.result()
        return self.scheduler

    async def stop(self) -> None:
        self._stop.set()
        if self._run is not None:
            await asyncio.wait_for(self._run, PATIENCE)
            self._run = None
        if self.scheduler is not None:
            left = self.scheduler.turns._card._left | self.scheduler.swapping._card._left
            await asyncio.gather(*map(_gone, left))

    async def ask(self, kind: str, container: Container | None = None, **arguments: Any) -> Command:
        """Writes a command as services do."""
        command: Command = await query(Command.objects.create, kind=kind, container=container, arguments=arguments)
        self._hint()
        return command

    async def command(self, kind: str, container: Container | None = None, **arguments: Any) -> Command:
        """The same, once it is finished."""
        return await self.answer(await self.ask(kind, container, **arguments))

    def _hint(self) -> None:
        if self.scheduler is not None:
            self.scheduler.commands.wake()

    async def answer(self, command: Command, within: float = PATIENCE) -> Command:
        async with asyncio.timeout(within):
            while True:
                command = await query(Command.objects.select_related("container").get, pk=command.pk)
                if command.done_at is not None:
                    return command
                await asyncio.sleep(0.005)

    async def start_launch(self, *words: str, gpu_memory: int | None = GIB, **fields: Any) -> tuple[Container, Command]:
        """Asks for a container that runs these words; `workload` stands for the demo's program."""

        def write() -> tuple[Container, Command]:
            owner, _ = User.objects.get_or_create(username=fields.pop("owner", "ada"))
            container = Container.objects.create(
                **{
                    "name": f"c{Container.objects.count()}",
                    "owner": owner,
                    "image": self.image,
                    "command": [str(self.workload) if word == "workload" else word for word in words],
                    "gpu_memory": gpu_memory,
                    **fields,
                }
            )
            return container, Command.objects.create(kind="launch", container=container, issued_by=owner)

        container, command = await query(write)
        self._hint()
        return container, command

    async def launch(self, *words: str, **fields: Any) -> Container:
        container, command = await self.start_launch(*words, **fields)
        command = await self.answer(command)
        assert command.outcome == "done", command.message
        return await self.get(container)

    async def living(self) -> list[Container]:
        return await query(lambda: list(Container.objects.live()))

    async def get(self, container: Container) -> Container:
        return await query(Container.objects.get, pk=container.pk)

    async def claim(self, container: Container) -> Claim:
        return await query(Claim.objects.select_related("gpu").get, container=container)

    async def until(self, container: Container, state: str, within: float = PATIENCE) -> Container:
        """The container once its row says that it is in this state."""
        deadline = time.monotonic() + within
        while True:
            container = await self.get(container)
            if container.state == state:
                return container
            assert time.monotonic() < deadline, f"{container.name} is {container.state}: {self.log(container)}"
            await asyncio.sleep(0.005)

    async def moved_to(self, container: Container, where: Swap) -> None:
        async def there() -> bool:
            return (await self.get(container)).swap == where

        await eventually(there, every=0.005)

    async def returned(self, container: Container) -> Claim:
        """The claim of an ended container, once everything it held has come back."""
        await eventually(lambda: str(container.pk) not in self.up.broker.live_containers)
        self.up.report.publish()
        await self.up.store.flush()
        return await self.claim(container)

    async def events(self, container: Container, *kinds: str) -> list[AllocationEvent]:
        events = await query(lambda: list(AllocationEvent.objects.filter(container=container).order_by("id")))
        return [event for event in events if not kinds or event.kind in kinds]

    def log(self, container: Container) -> str:
        path = self.home / "logs" / f"{container.pk}.log"
        return path.read_text() if path.exists() else ""

    async def says(self, container: Container, words: str) -> None:
        """Waits until the program has printed these words."""
        await eventually(lambda: words in self.log(container))

    async def close(self) -> None:
        """Ends every container, then the scheduler."""
        if self._run is None:
            await self.start()
        for status in await self.up.engine.statuses():
            await self.up.engine.kill(status.engine_id)
        await self.stop()


@contextlib.asynccontextmanager
async def a_host(
    settings: Any, home: Path, policy: str = "fifo", gpus: str = "sim:1x5GiB", docker: str = "", kind: type[H] = Host
) -> AsyncIterator[H]:
    """A running host with one simulated GPU of 5 GiB. `home` must be empty and outlive the test.

    `docker` is the address of an engine; without one, containers are local processes.
    """
    settings.GPUSHARE_HOME = home
    settings.GPUSHARE_GPUS = gpus
    settings.GPUSHARE_ENGINE = "docker" if docker else "process"
    settings.GPUSHARE_DOCKER_HOST = docker
    settings.GPUSHARE_POLICY = policy
    host = kind(home)
    await host.start()
    try:
        yield host
    finally:
        await host.close()


@pytest.fixture
async def host(transactional_db: None, settings: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    """A host with one simulated GPU of 5 GiB and real processes: a file of tests/scheduler imports it by name."""
    async with a_host(settings, tmp_path_factory.mktemp("host")) as host:
        yield host


def on_card(host: Host, container: Container) -> float:
    """Seconds that its processes have had of the card."""
    pids, nanoseconds, at = (ctypes.c_int * 64)(), (ctypes.c_uint64 * 64)(), ctypes.c_uint64()
    found = shim.sim.load_nvml(BUILD).sim_card_had(0, 64, pids, nanoseconds, ctypes.byref(at))
    its = host.up.computing.pids(str(container.pk))
    return sum(nanoseconds[i] for i in range(found) if pids[i] in its) / 1e9
