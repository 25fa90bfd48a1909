"""The process engine: containers that are plain local processes. For hosts without Docker, and for trying things out.

There is one image, `local`: the host's own file system. Each container is a keeper (see keeper.py) and what descends
from it; a folder below `home` holds what a restarted scheduler must know. Nothing is isolated: what only isolation can
give, such as limits of host memory, volumes and ports, is refused rather than ignored.
"""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from scheduler import clock
from scheduler.engines.base import (
    DISK_FULL,
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
from scheduler.engines.kept import make_folder_of
from scheduler.engines.process import tree
from scheduler.engines.process.executed import execute
from scheduler.engines.process.folders import forget_cut_launches, forget_unless_begun
from scheduler.engines.process.found import Found, Running
from scheduler.engines.process.keeper import boot_id, is_starting, keep_room, write_json
from scheduler.engines.process.taken import cannot_start, check_fields, check_image
from scheduler.engines.runtime_environment import RuntimeEnvironment, environment
from scheduler.parts import Background, is_set_within
from web.logs import ById

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_AGAIN = 1.5  # seconds; a container stopped or continued behind our back is seen by then
PAUSES = 3  # times that it is tried
DEATH_TAKES = 10.0  # seconds; a killed process can be held up by the kernel, not for long
LOOK_SOON = 0.05  # seconds; while what was killed just now is still there
HELD = f"It has not ended {DEATH_TAKES:.0f} s after SIGKILL; the kernel holds it."
ROOT = Path(__file__).resolve().parents[3]
# The scheduler's own environment holds secrets; these are what a program needs to find its way about.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH")


class ProcessEngine:
    """`programs`: a folder with more of them than the scheduler's own PATH leads to. `log_bytes`: kept of an output."""

    name = "process"
    memory_stays = ""
    in_swarm = False
    mountings = None  # nobody else starts containers with it
    placer = None  # it knows no other host
    away = ""
    outdated: Sequence[str] = ()

    def __init__(
        self,
        home: Path,
        runtime_environment: RuntimeEnvironment,
        programs: Path | None = None,
        *,
        log_bytes: int = 100 << 20,
    ) -> None:
        self._home, self._log_bytes, self._runtime_environment, self._programs = (
            home,
            log_bytes,
            runtime_environment,
            programs,
        )
        self._changes = Changes()
        self._found = Found(home)
        self._launching: set[str] = set()
        self._keepers: dict[str, tuple[int, int]] = {}  # container → pid and start of its keeper
        self._watched: dict[str, int] = {}  # container → pidfd of its keeper
        self._looking: asyncio.Task[None] | None = None
        self._ending = Background()

    @property
    def folder(self) -> Path:
        return self._home

    async def start(self) -> None:
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for status in await self.statuses():
            self._watch(status.engine_id)
        self._looking = asyncio.create_task(self._look_regularly())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        for id_ in list(self._watched):
            self._unwatch(id_)
        await self._ending.close()
        self._changes.close()

    async def image_labels(self, image: str, progress: Progress | None = None) -> Mapping[str, str]:
        check_image(image)
        return {}

    async def launch(self, launch: Launch, progress: Progress | None = None) -> Status:
        check_image(launch.image)
        if self._found.running(launch.id) is not None and not is_starting(self._home / launch.id):
            return await self._look_at(launch.id)  # the same launch again, whatever the host has become since
        check_fields(launch)
        self._launching.add(launch.id)
        try:
            await self._start_keeper(launch)
        finally:
            self._launching.discard(launch.id)
        return await self._begun(launch.id)

    async def _begun(self, id_: str) -> Status:
        """It runs: that the host is short of something from now on is no reason to say that it does not."""
        try:
            self._watch(id_)
            return await self._tell(id_)
        except OSError as error:
            log.warning("container %s has started, and is looked at later: %s", ById(id_), error)
            status = Status(id_, id_, Condition.RUNNING, started_at=clock.wall())
            self._changes.see(status)
            return status

    async def _start_keeper(self, launch: Launch) -> None:
        """Leaves nothing behind when it fails. Raises EngineError, or OSError where the host is short of something."""
        folder = self._home / launch.id
        try:
            folder.mkdir(mode=0o700, exist_ok=True)  # a scheduler that was killed over this launch may have made it
            keep_room(folder / "ended.json")
            write_json(
                folder / "launch.json",
                {
                    "command": list(launch.command),
                    "environment": self._environment(launch),
                    "working_dir": launch.working_dir or "/",
                    "log": str(launch.log_path),
                    "log_bytes": self._log_bytes,
                },
            )
            make_folder_of(launch.log_path)
            await _to_its_end(_keep(folder))  # a keeper under way starts the program, whatever becomes of us
        except (OSError, EngineError) as error:
            if not await _to_its_end(asyncio.to_thread(forget_unless_begun, folder)):
                log.warning("container %s was begun by an earlier scheduler's keeper: %s", ById(launch.id), error)
                return
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise EngineError(DISK_FULL, code="disk_full", status=503) from error
            raise

    async def attach(self, engine_id: str) -> Attached:
        raise EngineError("A local process takes no input.", code="not_supported", status=400)

    async def exec(self, engine_id: str, asked: Exec) -> Executed:
        running = self._found.living(engine_id)
        if await asyncio.to_thread(tree.is_frozen, running.keeper):
            raise EngineError("It is paused: resume it first.", code="paused")
        return await execute(self._found.folder(engine_id), asked)

    async def pause(self, engine_id: str) -> None:
        running = self._found.living(engine_id)
        try:
            for _ in range(PAUSES):  # what is started beside it, and is ended just now, is let go on for its end
                await asyncio.to_thread(tree.freeze, running.keeper)
                if (await self._tell_living(engine_id)).condition is Condition.PAUSED:
                    return
        except OSError:
            await asyncio.to_thread(tree.thaw, running.keeper)
            raise
        await asyncio.to_thread(tree.thaw, running.keeper)
        raise EngineError("It could not be stopped: the kernel holds a process of it, or it is just ending.")

    async def resume(self, engine_id: str) -> None:
        await asyncio.to_thread(tree.thaw, self._found.living(engine_id).keeper)
        await self._tell_living(engine_id)

    async def add_memory(self, engine_id: str, extra: int) -> None:
        """Nothing to do: this engine sets no limits of host memory."""

    async def give_card(self, engine_id: str, gpu: str) -> None:
        """Nothing to do: every process of the host reaches every card."""

    async def take_card(self, engine_id: str, gpu: str) -> None:
        """As above."""

    def require_within(self, id_: str, size: int) -> None: ...

    def memory_left(self) -> int | None:
        return None

    async def kill(self, engine_id: str, *, grace: float = 0.0) -> None:
        running = self._found.running(engine_id)
        if running is None or not running.is_kept():
            await self._settle(engine_id)
            return
        if grace > 0:
            await asyncio.to_thread(tree.end, running.keeper, signal.SIGTERM)
            await asyncio.to_thread(tree.thaw, running.keeper)
            if await _ended(running, grace):
                return
        # Frozen first: nothing can fork its way out between the look and the signal.
        await asyncio.to_thread(tree.freeze, running.keeper)
        await asyncio.to_thread(tree.end, running.keeper, signal.SIGKILL)
        if not await _ended(running, DEATH_TAKES):
            raise EngineError(HELD)
        await self._tell(engine_id)

    async def remove(self, engine_id: str) -> None:
        if (await self._look_at(engine_id)).condition not in (Condition.ENDED, Condition.GONE):
            raise EngineError("It still runs: kill it first.", code="still_running")
        self._unwatch(engine_id)
        try:
            await asyncio.to_thread(self._found.forget, engine_id)
        except OSError as error:
            raise EngineError(f"Its folder cannot be removed: {error.strerror}.") from error
        self._changes.gone_from_engine(engine_id)

    async def statuses(self) -> list[Status]:
        before = self._changes.snapshot()
        found = await asyncio.to_thread(self._found.look, frozenset(self._launching))
        self._changes.looked(before, found)
        return self._changes.known()  # of what changed during the look it knows less than we

    def changes(self) -> AsyncIterator[Status]:
        return self._changes.stream()

    def drain(self) -> list[Status]:
        return self._changes.drain()

    async def first_pid(self, engine_id: str) -> int:
        running = self._found.running(engine_id)
        return running.pid if running is not None and running.is_kept() else 0

    def owns(self, engine_id: str, pid: int) -> bool:
        running = self._found.running(engine_id)
        return running is not None and running.is_kept() and tree.is_below(pid, running.keeper)

    def uses(self, engine_ids: Iterable[str]) -> dict[str, Use]:
        known, self._keepers = self._keepers, {}
        for engine_id in engine_ids:
            if engine_id in known:
                self._keepers[engine_id] = known[engine_id]
            elif (running := self._found.running(engine_id)) is not None and running.boot == boot_id():
                self._keepers[engine_id] = running.keeper, running.keeper_started
        return {engine_id: Use(*used) for engine_id, used in tree.uses(self._keepers).items()}

    def _environment(self, launch: Launch) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        if self._programs is not None:
            inherited["PATH"] = f"{inherited.get('PATH', os.defpath)}:{self._programs}"
        simulation = self._runtime_environment.simulation
        ours = environment(
            {**launch.environment, "GPUSHARE_SOCKET": str(launch.socket_dir / "gpushare.sock")},
            gpus=launch.gpus,
            shim=str(self._runtime_environment.shim),
            libraries=[str(simulation.libraries)] if simulation else [],
            state=str(simulation.state) if simulation else None,
            of_image=inherited,
        )
        return {**inherited, **ours}

    async def _settle(self, engine_id: str) -> None:
        """Waits until nothing is left of one whose keeper is gone. Raises EngineError."""
        deadline = clock.monotonic() + DEATH_TAKES
        while (await self._tell(engine_id)).condition is Condition.RUNNING:
            if clock.monotonic() > deadline:
                raise EngineError(HELD)
            await asyncio.sleep(LOOK_SOON)

    async def _tell_living(self, engine_id: str) -> Status:
        """Raises EngineError if it has ended meanwhile."""
        status = await self._tell(engine_id)
        if status.condition in (Condition.ENDED, Condition.GONE):
            raise EngineError("The container has ended.", code="not_running")
        return status

    async def _tell(self, engine_id: str) -> Status:
        while True:
            before = self._changes.last(engine_id)
            status = await self._look_at(engine_id)
            if self._changes.last(engine_id) is before:  # else somebody has looked meanwhile, and may have seen more
                self._changes.see(status)
                return status

    async def _look_at(self, engine_id: str) -> Status:
        """Apart: it takes as long as the host has processes, and any program can have thousands."""
        return await asyncio.to_thread(self._found.status, engine_id)

    def _watch(self, engine_id: str) -> None:
        """Has the kernel tell when the keeper ends."""
        running = self._found.running(engine_id)
        if running is None or engine_id in self._watched or not running.is_kept():
            return
        try:
            pidfd = os.pidfd_open(running.keeper)
        except ProcessLookupError:
            return
        self._watched[engine_id] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._keeper_ended, engine_id)

    def _unwatch(self, engine_id: str) -> None:
        if (pidfd := self._watched.pop(engine_id, None)) is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def _keeper_ended(self, engine_id: str) -> None:
        self._unwatch(engine_id)
        self._ending.begin(self._tell_end(engine_id))

    async def _tell_end(self, engine_id: str) -> None:
        with contextlib.suppress(EngineError):  # the kernel holds it: a regular look will see its end
            await self._settle(engine_id)

    async def _look_regularly(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            try:
                await self.statuses()
                forget_cut_launches(self._home, self._launching)
            except OSError as error:
                log.warning("the containers cannot be looked at: %s", error)


async def _to_its_end(doing: Coroutine[Any, Any, T]) -> T:
    """Also if we are cancelled meanwhile; that is raised after it."""
    task = asyncio.create_task(doing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.exception()
        raise


async def _keep(folder: Path) -> None:
    """Starts a keeper and waits until the program has started. Raises EngineError if it has not."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-SPm", "scheduler.engines.process.keeper", str(folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    said, failure = await process.communicate()
    if failure:
        raise EngineError(f"Its keeper failed: {failure.decode(errors='replace').strip().splitlines()[-1]}.")
    if said:
        why = said.decode(errors="replace").strip()
        raise cannot_start(why)
    if not (folder / "running.json").exists():
        raise EngineError("Its keeper process was killed before the program began. Launch it again.")


async def _ended(running: Running, within: float) -> bool:
    """Whether the keeper ends within so many seconds."""
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(running.keeper)
    except ProcessLookupError:
        return True
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        return await is_set_within(ended, within)
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
