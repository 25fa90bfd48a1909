"""Ending containers: the one place that does, whoever wants it.

A person's kill is tried once for its answer; a time that is over, or memory taken past the shim, wants the end without
waiting for it. In both cases what failed is tried again, after longer and longer pauses, until the engine shows that
the container has ended: one that is to end gets no more memory, so it must not be left like that. The first reason
stays.
"""

import asyncio
import logging
from functools import partial

from django.db import DatabaseError

from scheduler.card.turns import TurnPlayer
from scheduler.containers.intents import Intents
from scheduler.core.events import ContainerKilled
from scheduler.engines.base import EngineError
from scheduler.parts import is_set_within
from scheduler.sessions.live_containers import LiveContainer
from scheduler.shared import SharedParts
from web.errors import Problem
from web.models import Command

log = logging.getLogger(__name__)

SEEN_WITHIN = 10.0  # seconds from the engine's "it is dead" to its being seen as ended
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between two attempts
GRACE_AFTER_RESTART = 10.0  # seconds; how much of the first had passed is not known
SPARED = 30.0  # seconds of its grace in which it need not wait for its turn
ENDING = "ending"  # a reason to take no turns
EXPECTED = (Problem, EngineError, DatabaseError)  # each with a sentence; anything else is a fault of ours


class Terminator:
    def __init__(self, shared: SharedParts, intents: Intents, turns: TurnPlayer) -> None:
        self._engine, self._broker, self._records = shared.engine, shared.broker, shared.store.records
        self._intents, self._turns = intents, turns
        self._wanted: dict[str, asyncio.Task[None]] = {}

    async def end(self, live: LiveContainer, *, reason: str, grace: float = 0.0) -> None:
        """Ends it and waits for that: SIGTERM and up to `grace` seconds first, if that is not 0.

        Raises Problem, EngineError or DatabaseError if it has not ended; it goes on being tried.
        """
        self._mean(live, reason, grace)
        try:
            await self._attempt(live, grace)
        except Exception:
            self._want(live, grace, FIRST_PAUSE)
            raise

    def want(self, live: LiveContainer, *, reason: str, grace: float = 0.0) -> None:
        """The same without waiting for it. Wanting it again changes nothing."""
        if live.id not in self._wanted and not live.finished:
            self._mean(live, reason, grace)
            self._want(live, grace, 0.0)

    def _mean(self, live: LiveContainer, reason: str, grace: float) -> None:
        """In its grace it may want to compute; but an hour of that, again and again, would be a way round the turns."""
        if not live.killed:
            self._turns.bar(live.id, ENDING)
            if grace:
                asyncio.get_running_loop().call_later(SPARED, partial(self._turns.bar, live.id, ENDING, on=False))
        self._intents.kill(live, reason)

    async def resume(self, live_containers: list[LiveContainer]) -> None:
        """After a restart: goes on ending what an earlier scheduler meant to end, but for open kill commands."""
        commands = await self._records.commands()
        by_command = {str(command.container_id) for command in commands if command.kind == Command.Kind.KILL}
        for live in live_containers:
            if live.killed and live.id not in by_command:
                self.want(live, reason=live.reason, grace=GRACE_AFTER_RESTART)

    async def close(self) -> None:
        for task in self._wanted.values():
            task.cancel()
        await asyncio.gather(*self._wanted.values(), return_exceptions=True)

    async def _attempt(self, live: LiveContainer, grace: float) -> None:
        await self._intents.durable()
        self._broker.tell(ContainerKilled(self._broker.now(), live.id))  # its waiting calls are rejected from now on
        await self._engine.kill(live.engine_id, grace=grace)
        if not await is_set_within(live.end, SEEN_WITHIN):
            raise Problem("still_running", "It was killed, but the engine still shows it running.", 409)

    def _want(self, live: LiveContainer, grace: float, pause: float) -> None:
        if live.id not in self._wanted:
            task = asyncio.create_task(self._until_ended(live, grace, pause), name=f"end {live.id}")
            self._wanted[live.id] = task
            task.add_done_callback(lambda _: self._wanted.pop(live.id))

    async def _until_ended(self, live: LiveContainer, grace: float, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE) or FIRST_PAUSE
            if live.finished:
                return
            try:
                await self._attempt(live, grace)
            except EXPECTED as error:
                log.warning("container %s could not be ended, again in %.0f s: %s", live, pause, error)
            except Exception:
                log.exception("container %s could not be ended, again in %.0f s", live, pause)
            else:
                return
