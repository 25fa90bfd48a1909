"""An engine whose containers are coroutines: held to tests/engines/test_conformance.py like the others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from scheduler import clock
from scheduler.engines.base import (
    SIGKILLED,
    Attached,
    Condition,
    EngineError,
    Exec,
    Executed,
    Launch,
    Progress,
    Status,
    Use,
)
from scheduler.engines.changes import Changes
from scheduler.engines.process.taken import cannot_start, check_fields, check_image
from scheduler.engines.runtime_environment import environment
from tests.support.inprocess.process import Machine, OutOfMemory, Process, Program, Refused
from tests.support.inprocess.programs import PROGRAMS

TERMINATED = 143


@dataclass(eq=False)
class Container:
    """`processes`: those that live, with what each of them runs. It ends with its `first` one."""

    launch: Launch
    status: Status
    first: Process
    processes: dict[Process, asyncio.Task[int | None]] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class InProcessEngine:
    """`programs`: by the first word of a command. It outlives schedulers: `start` and `close` are one's."""

    name = "process"
    placer = mountings = folder = None
    in_swarm = False
    outdated: tuple[str, ...] = ()
    memory_stays = ""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.programs: dict[str, Program] = dict(PROGRAMS)
        self.containers: dict[str, Container] = {}
        self.away = ""
        self.extra: dict[str, int] = {}  # engine id → bytes of host memory beyond its limit
        self.labels: Mapping[str, str] = {}
        self.failures: list[BaseException] = []  # of programs: a test's own faults
        self._changes = Changes()

    async def start(self) -> None:
        self._changes = Changes()

    async def close(self) -> None:
        self._changes.close()

    async def image_labels(self, image: str, progress: Progress | None = None) -> Mapping[str, str]:
        check_image(image)
        return self.labels

    async def launch(self, launch: Launch, progress: Progress | None = None) -> Status:
        check_image(launch.image)
        check_fields(launch)
        if launch.id in self.containers:
            return self.containers[launch.id].status
        name, *words = launch.command
        program = self.programs.get(name.rpartition("/")[2])
        if program is None:
            raise cannot_start(f"{name}: no such program")
        launch.log_path.parent.mkdir(parents=True, exist_ok=True)
        launch.log_path.touch()
        socket = str(launch.socket_dir / "gpushare.sock")
        env = environment(
            {**launch.environment, "GPUSHARE_SOCKET": socket}, gpus=launch.gpus, shim="", libraries=[], state=None
        )
        process = Process(
            self.machine, list(launch.gpus), env,
            say=lambda text: _append(launch.log_path, text),
            forked=lambda child, program, words: self._begin(its, child, program, words),
        )  # fmt: skip
        status = Status(launch.id, launch.id, Condition.RUNNING, started_at=clock.wall())
        its = self.containers[launch.id] = Container(launch, status, process)
        self._begin(its, process, program, tuple(words))
        self._changes.see(its.status)
        return its.status

    def _begin(self, its: Container, process: Process, program: Program, words: tuple[str, ...]) -> None:
        task = asyncio.create_task(process.run(program(process, *words)), name=f"container {its.launch.name}")
        its.processes[process] = task
        task.add_done_callback(lambda _: self.ended(process))

    def ended(self, process: Process, code: int = SIGKILLED) -> None:
        """It is over with this process, by itself or as it was killed."""
        its = next((each for each in self.containers.values() if process in each.processes), None)
        if its is None:
            return
        task = its.processes.pop(process)
        if not task.done():
            task.cancel()
        elif not task.cancelled():
            code = self._code(task)
        process.end()
        if process is its.first:
            for other in list(its.processes):
                self.ended(other)
            its.status = replace(its.status, condition=Condition.ENDED, exit_code=code, finished_at=clock.wall())
            its.ended.set()
            self._changes.see(its.status)

    def _code(self, task: asyncio.Task[int | None]) -> int:
        match task.exception():
            case None:
                return task.result() or 0
            case OutOfMemory():
                return 2
            case error:
                if not isinstance(error, Refused):
                    self.failures.append(error)
                return 1

    def kill_process(self, pid: int, code: int = SIGKILLED) -> None:
        """SIGKILL, or any signal that ends it."""
        for its in self.containers.values():
            for process in its.processes:
                if process.pid == pid:
                    self.ended(process, code)
                    return

    async def pause(self, engine_id: str) -> None:
        self._freeze(engine_id, Condition.PAUSED)

    async def resume(self, engine_id: str) -> None:
        self._freeze(engine_id, Condition.RUNNING)

    def _freeze(self, engine_id: str, condition: Condition) -> None:
        its = self._living(engine_id)
        for process in its.processes:
            process.freeze(condition is Condition.PAUSED)
        its.status = replace(its.status, condition=condition)
        self._changes.see(its.status)

    async def kill(self, engine_id: str, *, grace: float = 0.0) -> None:
        its = self.containers.get(engine_id)
        if its is None or its.ended.is_set():
            return
        if grace:
            for process in list(its.processes):
                process.freeze(False)
                process.terminated.set()
                if not process.deaf:
                    self.ended(process, TERMINATED)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await its.ended.wait()
        if not its.ended.is_set():
            self.ended(its.first)

    async def remove(self, engine_id: str) -> None:
        its = self.containers.get(engine_id)
        if its is not None and not its.ended.is_set():
            raise EngineError("It still runs: kill it first.", code="still_running")
        self.containers.pop(engine_id, None)
        self._changes.gone_from_engine(engine_id)

    async def add_memory(self, engine_id: str, extra: int) -> None:
        self.extra[engine_id] = extra

    async def attach(self, engine_id: str) -> Attached:
        raise EngineError("There is no keyboard into a coroutine.", code="not_supported", status=400)

    async def exec(self, engine_id: str, asked: Exec) -> Executed:
        raise EngineError("There is no exec into a coroutine.", code="not_supported", status=400)

    async def give_card(self, engine_id: str, gpu: str) -> None:
        """Nothing to do: every process of the host reaches every card."""

    async def take_card(self, engine_id: str, gpu: str) -> None:
        """As above."""

    def require_within(self, id_: str, size: int) -> None: ...

    def memory_left(self) -> int | None:
        return None

    def uses(self, engine_ids: Iterable[str]) -> dict[str, Use]:
        used = self.machine.kernel.processor_time
        return {
            id_: Use(sum(used(process.pid) for process in its.processes), 1 << 20)
            for id_ in engine_ids
            if (its := self.containers.get(id_)) and not its.ended.is_set()
        }

    async def statuses(self) -> list[Status]:
        await asyncio.sleep(0)  # others have the loop in between, as with any engine
        before = self._changes.snapshot()
        self._changes.looked(before, [its.status for its in self.containers.values()])
        return self._changes.known()

    def changes(self) -> AsyncIterator[Status]:
        return self._changes.stream()

    def drain(self) -> list[Status]:
        return self._changes.drain()

    def owns(self, engine_id: str, pid: int) -> bool:
        its = self.containers.get(engine_id)
        return its is not None and any(process.pid == pid for process in its.processes)

    def _living(self, engine_id: str) -> Container:
        its = self.containers.get(engine_id)
        if its is None or its.ended.is_set():
            raise EngineError("The container has ended.", code="not_running")
        return its


def _append(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(f"{text}\n")
