"""Carries out what people want: takes Command rows in order and writes down what came of each.

Commands about one container follow each other; those about different containers do not wait for one another, so that
the fetching of an image holds up nobody else. A message on this host's channel says that there may be something to do;
the rows are looked at every second as well.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from django.db import DatabaseError

from scheduler import clock
from scheduler.containers.dispatcher import HAS_IT, CameToANode, Dispatcher
from scheduler.containers.forecasts import foresee
from scheduler.containers.intents import was_begun, was_called_off
from scheduler.containers.launch import Launcher, called_off
from scheduler.containers.registry import Containers
from scheduler.containers.removal import Removal
from scheduler.containers.steering import Steering
from scheduler.containers.terminator import Terminator
from scheduler.core.effects import Refused
from scheduler.core.events import PolicyChanged
from scheduler.engines.base import EngineAway, EngineError
from scheduler.parts import is_set_within
from scheduler.sessions.live_containers import LiveContainer
from scheduler.shared import SharedParts
from scheduler.store import pending_placements
from web.errors import Problem
from web.models import Command, Container

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0  # seconds
STILL_THERE = "It was not launched. A part of it runs and could not be ended yet; the scheduler keeps trying."
CommandKind = Command.Kind


@dataclass(frozen=True, slots=True)
class Actions:
    """What carries a command out.

    `set_mode` switches a GPU between turns and sharing, and says so in a sentence. Raises Problem. `service` takes a
    GPU out of service and puts it back.
    """

    launcher: Launcher
    dispatcher: Dispatcher | None
    steering: Steering
    ender: Terminator
    removal: Removal
    set_mode: Callable[[str, str], Awaitable[str]]
    service: "InAndOut"


class InAndOut(Protocol):
    def drain(self, gpu: str, reason: str) -> str: ...
    def undrain(self, gpu: str) -> str: ...


class Commands:
    def __init__(self, shared: SharedParts, containers: Containers, actions: Actions) -> None:
        self._broker, self._store, self._containers = shared.broker, shared.store, containers
        self._launcher, self._dispatcher, self._steering = actions.launcher, actions.dispatcher, actions.steering
        self._ender, self._removal, self.set_mode = actions.ender, actions.removal, actions.set_mode
        self._service = actions.service
        self._wake = asyncio.Event()
        self._taken: dict[Any, asyncio.Task[None]] = {}
        self._last: dict[str, asyncio.Task[None]] = {}  # container → the last command about it
        self._launching: dict[str, asyncio.Task[None]] = {}
        self._calling_off: set[asyncio.Task[None] | None] = set()  # kills that broke a launch off, or came meanwhile
        self._left: set[str] = set()  # containers whose launch was broken off, and of which something was left

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                await self._take()
                await is_set_within(self._wake, LOOK_EVERY)
            except DatabaseError as error:
                log.error("the commands cannot be read: %s", error)
                await asyncio.sleep(LOOK_EVERY)

    async def close(self) -> None:
        """Stops what is under way; the next start takes it up again."""
        for task in self._taken.values():
            task.cancel()
        await asyncio.gather(*self._taken.values(), return_exceptions=True)

    async def _take(self) -> None:
        self._wake.clear()
        commands = await self._store.records.commands()
        # An outcome is in the database a moment after its command is done; until then the row still looks open.
        still_open = {command.pk for command in commands}
        self._taken = {pk: task for pk, task in self._taken.items() if pk in still_open or not task.done()}
        for command in commands:
            if command.pk not in self._taken:
                self._start(command)
                await asyncio.sleep(0)  # it begins, so that a kill finds the launch that it is to break off

    def _start(self, command: Command) -> None:
        container = str(command.container_id or "")
        before, calls_off = self._last.get(container), False
        if command.kind == CommandKind.KILL:
            live = self._containers.find(container)
            if live is not None and live.started_at is not None:
                before = None  # it is reported as started already: it is ended like any other
            elif launching := self._launching.pop(container, None):
                self._launcher.call_off(container, f"Killed {_for_whom(command)}")
                launching.cancel()
                calls_off = True
            else:  # a second one has its answer after the first: until then the engine may have something of it
                calls_off = before in self._calling_off
        task = asyncio.create_task(self._carry_out(command, before), name=command.kind)
        self._taken[command.pk] = self._last[container] = task
        if calls_off:
            self._calling_off.add(task)
            task.add_done_callback(self._calling_off.discard)
        task.add_done_callback(lambda done: self._last.get(container) is done and self._last.pop(container))

    async def _carry_out(self, command: Command, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        if self._is_elsewhere(command.container) and command.kind != CommandKind.LAUNCH:
            await self._pass_on(command)
            return
        self._store.taken(command.pk)
        try:
            message = await self._act(command)
        except CameToANode:
            await self._pass_on(command)
        except Problem as problem:
            self._refuse(command, problem)
        except EngineError as error:
            self._refuse(command, Problem(error.code, str(error), error.status, error.field))
            if isinstance(error, EngineAway) and command.kind == CommandKind.LAUNCH:
                await self._launcher.let_go(str(command.container_id))
        except DatabaseError as error:
            log.error("command %s (%s): the database: %s", command.pk, command.kind, error)
            self._refuse(command, Problem("database_away", "The database did not take this. Try again shortly.", 503))
        except OSError as error:
            log.error("command %s (%s): the host: %s", command.pk, command.kind, error)
            said = f"The host does not let the scheduler do this now: {error.strerror or error}. Try again shortly."
            self._refuse(command, Problem("host_short", said, 503))
        except Exception:
            log.exception("command %s (%s)", command.pk, command.kind)
            self._refuse(command, Problem("internal", "The scheduler failed at this; its log has details.", 500))
        else:
            self._done(command, Command.Outcome.DONE, message=message[:1000])

    def _is_elsewhere(self, row: Container | None) -> bool:
        """A placer has brought it to another node, after this was asked."""
        return row is not None and row.node_id not in (None, self._store.here)

    async def _pass_on(self, command: Command) -> None:
        try:
            await self._store.write(pending_placements.pass_on, command.pk)
        except DatabaseError as error:
            log.error("command %s (%s): the database: %s", command.pk, command.kind, error)
        self._taken.pop(command.pk, None)  # if it is ours after all, it is looked at again

    def _refuse(self, command: Command, problem: Problem) -> None:
        if command.kind == CommandKind.LAUNCH:
            now = clock.now()
            self._store.container(
                str(command.container_id), finished_at=now, removed_at=now, reason=problem.message[:500]
            )
            self._containers.over(str(command.container_id))
        self._done(
            command,
            Command.Outcome.REFUSED,
            code=problem.code,
            status=problem.status,
            field=problem.field,
            message=problem.message[:1000],
        )

    def _done(self, command: Command, outcome: Command.Outcome, **fields: Any) -> None:
        self._store.command(command.pk, outcome=outcome, done_at=clock.now(), **fields)

    async def _act(self, command: Command) -> str:
        """Does it; a sentence about what happened. Raises Problem or EngineError."""
        arguments = command.arguments
        match command.kind:
            case CommandKind.POLICY:
                self._decided(self._broker.ask(PolicyChanged(self._broker.now(), arguments["policy"])))
                policy = self._broker.state.policy
                self._store.node(policy=policy, policy_asked=policy)
                return f"The policy is {policy}."
            case CommandKind.REORDER:
                self._decided(self._broker.reorder(tuple(arguments["containers"])))
                return "The queue is reordered. That holds until the scheduler starts again."
            case CommandKind.COMPUTE:
                return await self._compute(arguments["gpu"], arguments["compute"])
            case CommandKind.DRAIN:
                return self._service.drain(arguments["gpu"], arguments["reason"])
            case CommandKind.UNDRAIN:
                return self._service.undrain(arguments["gpu"])
            case CommandKind.FORECAST:
                result, message = foresee(self._broker, arguments)
                self._store.command(command.pk, result=result)
                return message
        row = command.container
        if row is None:
            raise Problem("unknown_container", "There is no such container.", 404)
        match command.kind:
            case CommandKind.LAUNCH:
                return await self._launch(row, command)
            case CommandKind.REMOVE:
                await self._removal.remove(row)
                return "It was removed."
            case CommandKind.KILL if asyncio.current_task() in self._calling_off:
                if self._dispatcher and not row.node_asked:  # a node may have been faster: its record says so by now
                    await self._store.flush()
                    raise CameToANode
                if str(row.pk) in self._left:
                    raise Problem("still_running", STILL_THERE, 409)
                return called_off().message
            case CommandKind.KILL if self._dispatcher and self._dispatcher.has(row):
                await self._dispatcher.call_off(row, f"Killed {_for_whom(command)}")
                return called_off().message
            case CommandKind.KILL if self._find(row) is None and was_called_off(row):
                return called_off().message
            case CommandKind.KILL if self._find(row) is None and was_begun(command, row):
                return "The container has ended."
        return await self._steer(row, self._living(row), command)

    async def _compute(self, gpu: str, mode: str) -> str:
        """How containers share a GPU, from now on and after the next start. Raises Problem."""
        said = await self.set_mode(gpu, mode)
        self._store.gpu(gpu, compute_asked=mode)
        return said

    async def _launch(self, row: Container, command: Command) -> str:
        id_, loop = str(row.pk), asyncio.get_running_loop()
        row.gpu_uuids = row.gpu_uuids or command.arguments.get("gpus", [])  # that the planner chose, with room for it

        def progress(text: str) -> None:
            loop.call_soon_threadsafe(lambda: self._store.command(command.pk, message=text[:1000]))

        task = asyncio.current_task()
        assert task is not None
        self._launching[id_] = task
        try:
            if self._dispatcher is not None and not row.node_asked:
                return await self._dispatcher.launch(row, progress)
            await self._launcher.launch(row, progress)
        except asyncio.CancelledError:
            if id_ in self._launching:
                raise  # nobody killed it: the scheduler stops
            task.uncancel()
            if self._dispatcher is None or row.node_asked:
                await self._abort(id_)
            elif await self._dispatcher.came_to_a_node(row):
                return HAS_IT
            raise called_off() from None
        finally:
            self._launching.pop(id_, None)
        return "It was started."

    async def _abort(self, id_: str) -> None:
        """Raises EngineError or OSError, and then whoever killed it gets no answer that nothing of it is left."""
        try:
            await self._launcher.abort(id_)
        except (EngineError, OSError):
            self._left.add(id_)
            raise

    async def _steer(self, row: Container, live: LiveContainer, command: Command) -> str:
        arguments = command.arguments
        match command.kind:
            case CommandKind.PAUSE:
                if arguments.get("while_idle") and not (live.idle or live.paused):
                    raise Problem("not_idle", f'"{row.name}" computes again. It was not paused.', 409)
                free, why = bool(arguments.get("free_memory")), f"Paused {_for_whom(command)}"
                paused = free and await self._was_paused(live, command)
                return await self._steering.pause(live, free_memory=free, why=why, was_paused=paused)
            case CommandKind.MOVE:
                why = f"Moved {_for_whom(command)}"
                return await self._steering.move(live, arguments["gpu"], arguments.get("leaves", ""), why)
            case CommandKind.RESUME:
                return await self._steering.resume(live)
            case CommandKind.KILL:
                reason = f"Killed {_for_whom(command)}"
                await self._ender.end(live, grace=float(arguments.get("grace") or 0), reason=reason)
                return "The container has ended."
            case CommandKind.CHANGE:
                await self._steering.change(row, live, arguments)
                return "It was changed."
        raise Problem("unknown_command", f"The scheduler knows no command {command.kind}.", 400)

    async def _was_paused(self, live: LiveContainer, command: Command) -> bool:
        """Noted before it is thawed to have its memory moved: only here it is to be found then."""
        if live.paused and not command.result:
            self._store.command(command.pk, result={"was_paused": True})
            await self._store.durable()
        return live.paused or bool(command.result)

    def _find(self, row: Container) -> LiveContainer | None:
        live = self._containers.find(str(row.pk))
        return None if live is None or live.finished or live.started_at is None else live

    def _living(self, row: Container) -> LiveContainer:
        if (live := self._find(row)) is None:
            if self._dispatcher and self._dispatcher.has(row):
                message = f'"{row.name}" waits for a node of the Swarm. It can only be killed until it runs.'
                raise Problem("not_running", message, 409)
            raise Problem("container_ended", f'"{row.name}" has ended.', 409)
        return live

    def _decided(self, refused: Refused | None) -> None:
        if refused is not None:
            raise Problem(refused.reason.value, refused.explanation, 400)


def _for_whom(command: Command) -> str:
    by = command.issued_by.get_username() if command.issued_by else "the appliance"
    return f"by {by}" + (f": {command.note}" if command.note else ".")
