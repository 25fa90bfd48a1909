"""Launching: from a row to a container that runs, or to a sentence about why not and nothing left behind."""

import asyncio
import contextlib
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

from django.db import DatabaseError

from scheduler import clock
from scheduler.containers import placement
from scheduler.containers.consoles import Consoles
from scheduler.containers.intents import Intents, was_called_off
from scheduler.containers.registry import Containers, as_live_container, as_problem
from scheduler.engines.asked import Asked
from scheduler.engines.base import EngineAway, EngineError, Launch, Progress
from scheduler.engines.runtime_environment import MOVABLE, said_of_memory
from scheduler.sessions.live_containers import LiveContainer
from scheduler.shared import SharedParts
from web.errors import Problem
from web.logs import ById
from web.models import Container
from web.spec import quotas
from web.spec.requests import COLUMNS

log = logging.getLogger(__name__)

NO_RESTART = (
    "Only a Swarm restarts containers. Here, start it with Docker's own --restart and a volume (docs/volumes.md)."
)
AGAIN = 2.0  # seconds until a database is asked again that takes nothing
ASKED = [each.name for each in fields(Asked) if each.name in COLUMNS]  # the engine gets it as it was asked for


class Launcher:
    def __init__(self, shared: SharedParts, containers: Containers, consoles: Consoles, intents: Intents) -> None:
        self._engine, self._gpus, self._store = shared.engine, shared.gpus, shared.store
        self._broker, self._server = shared.broker, shared.server
        self._containers, self._consoles, self._intents = containers, consoles, intents
        self._logs = shared.home / "logs"
        self.let_go_of: set[str] = set()  # launches: refused, which is durable, and yet they may run, or come to run

    async def launch(self, row: Container, progress: Progress | None = None) -> None:
        """`progress` is called, from any thread, with the progress of the pull. Raises Problem or EngineError."""
        if row.started_at is not None or self._containers.find(str(row.pk)):
            return  # a scheduler did this and died before it could say so; this one has taken the container over
        try:
            await self._start(row, progress)
        except asyncio.CancelledError:
            raise  # the scheduler stops: the same launch is taken up again at its next start
        except EngineAway:  # the engine may have done it all the same, or yet do it: see `let_go`
            if live := self._containers.find(str(row.pk)):
                live.called_off = True
            raise
        except BaseException:
            self._forget(str(row.pk))
            raise

    async def _start(self, row: Container, progress: Progress | None) -> None:
        if was_called_off(row):
            raise called_off()
        if row.restart:
            raise Problem("not_supported", NO_RESTART, 400, "restart")
        # A scheduler that died over this launch may have started it, with the GPUs that it had promised.
        promised = await self._store.promises.made(row)
        live = as_live_container(row, promised or await self._place(row, progress))
        if refused := self._containers.admit(row, live):
            raise as_problem(refused)
        if not promised:
            # A quota by label is known only now, so the owner's allowance is looked at only now, too.
            by_label = row.gpu_memory is None
            await self._store.promises.make(row, live.quota, within_allowance=by_label, admitted=True)
        socket_dir = self._server.listen(live.id)
        status = await self._engine.launch(self._launch(row, live, socket_dir), progress)
        self._store.container(live.id, engine=self._engine.name)
        self._containers.seen(status)
        if row.interactive or row.tty:
            try:
                await self._consoles.hold(live.id, status.engine_id)
            except (EngineError, OSError) as error:  # it runs, and can be attached to later
                log.warning("container %s: its console: %s", live, error)

    async def _place(self, row: Container, progress: Progress | None) -> dict[str, int]:
        """Bytes of quota on each of the GPUs that it gets."""
        size = row.gpu_memory or quotas.of_image(await self._engine.image_labels(row.image, progress))
        gpus: list[str] = placement.choose(
            self._broker.state, row.gpu_count, size, row.gpu_uuids, row.owner.get_username(), row.ttl_seconds
        )
        gpus = sorted(gpus, key=lambda gpu: card.index if (card := self._gpus.cards.get(gpu)) else -1)
        return dict.fromkeys(gpus, size)

    def _launch(self, row: Container, live: LiveContainer, socket_dir: Path) -> Launch:
        smallest = min(live.quota, key=lambda gpu: live.quota[gpu])
        said = said_of_memory(live.quota[smallest], self._gpus.cards[smallest].total)
        return Launch(
            gpus=list(live.quota),
            socket_dir=socket_dir,
            log_path=self._logs / f"{live.id}.log",
            **asked_of(row) | {"environment": {**row.environment, **(MOVABLE if row.movable else {}), **said}},
        )

    def call_off(self, id_: str, reason: str) -> None:
        """It is to come to nothing; `abort` sees to that."""
        if live := self._broker.live_containers.get(id_):
            live.called_off = True
            self._intents.kill(live, reason)
        else:
            self._store.container(id_, kill_requested_at=clock.now(), reason=reason[:500])

    async def abort(self, id_: str) -> None:
        """A launch was broken off at an unknown point; nothing of it may stay. Raises EngineError.

        It may run by now, and ends if its socket goes: that it was called off is in the database first.
        """
        await self._durable(id_)
        await self.clear_away(id_)

    async def clear_away(self, id_: str) -> None:
        """The same of one of which it is durable already that it is not to run."""
        try:
            for status in await self._engine.statuses():
                if status.id == id_:
                    await self._engine.kill(status.engine_id)
                    with contextlib.suppress(
                        EngineError
                    ):  # its output, say, is still being copied: garbage_collection.py
                        await self._engine.remove(status.engine_id)
        finally:
            self._forget(id_)

    async def let_go(self, id_: str) -> None:
        """Its launch was refused although it may run, or come to run. What comes of it garbage_collection.py clears
        away."""
        await self._durable(id_)
        self.let_go_of.add(id_)
        self._forget(id_)

    async def _durable(self, id_: str) -> None:
        while True:
            try:
                return await self._intents.durable()
            except DatabaseError as error:
                log.error("container %s, which is not to be launched, is ended later: %s", ById(id_), error)
                await asyncio.sleep(AGAIN)

    def _forget(self, id_: str) -> None:
        """No report says that it was started."""
        if live := self._containers.find(id_):
            self._containers.forget(live)
        else:
            self._server.shut(id_)  # which an earlier scheduler may have opened for this launch


def asked_of(row: Container) -> dict[str, Any]:
    """The fields of `Asked`."""
    asked = {name: getattr(row, name) for name in (*ASKED, "name", "environment")}
    return {"id": str(row.pk), "owner": row.owner.get_username(), **asked}


def called_off() -> Problem:
    return Problem("killed", "It was killed before it had started.", 409)
