"""Two WebSockets (web/console/frames.py says what passes): a container's keyboard and screen at
/ws/containers/ID/console/, and those of one more program in it at /ws/containers/ID/exec/.

What is to be started is the first message, in JSON (ExecSpec): in an address, every proxy would log it. Whoever may not
is sent a refusal, and 4000 + its status as close code. Opening and closing go into the audit log; what is started,
typed and shown does not.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from channels.generic.websocket import AsyncWebsocketConsumer  # type: ignore[import-untyped]
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import F

from web import audit
from web.budgets import Place, Places
from web.console.frames import (
    FROM_SCHEDULERS,
    PAYLOAD_LIMIT,
    TOO_LONG,
    BadFrame,
    FrameKind,
    Line,
    ask,
    asking,
    connect,
    frame_of,
    problem_of,
    refusal,
)
from web.errors import Problem, conflict, invalid, not_found
from web.models import Container
from web.people import visitor
from web.people.roles import Deed, require, require_steering
from web.relay.reaching import Kind, found_elsewhere, reach
from web.spec.requests import ExecSpec

BAD_FRAME = Problem("bad_frame", "This is not a message of a console.", 400)
SAYS_WITHIN = 10.0  # seconds
NOTHING_SAID = Problem("too_slow", "The message does not say what to start.", 408)
AWAY = Problem("scheduler_away", "The connection to the scheduler was lost. The container continues.", 503)


class ConsoleConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    channel_layer_alias = ""  # none: what somebody writes into Redis would be taken for what was typed here
    kind = "console"
    places, what = Places("consoles", "consoles_in_all"), "consoles are open"
    line: Line | None = None
    passing: asyncio.Task[None] | None = None
    place: Place | None = None
    opened_at = 0.0

    async def connect(self) -> None:
        await self.accept()
        try:
            self.user, self.container = await database_sync_to_async(self.admit)(self.scope)
            self.place = self.places.require(self.user.pk, self.what)
        except Problem as problem:
            await self._refuse(problem)
        else:
            await self._begin()

    def admit(self, scope: dict[str, Any]) -> tuple[User, Container]:
        return admit(scope)

    async def _begin(self) -> None:
        """May wait for what is to be said first."""
        await self._open()

    async def _open(self, program: dict[str, Any] | None = None) -> None:
        try:
            asked = asking(self.container.pk, program)
            self.line = await ask(await self._connect(), asked)
        except Problem as problem:
            await self._refuse(problem)
            return
        self.opened_at = time.monotonic()
        await self._record(f"{self.kind}-opened")
        await self.send(bytes_data=bytes([FrameKind.OPEN]))
        self.passing = asyncio.create_task(self._pass_on(partial(self._show, self.line)))

    async def _connect(self) -> Line:
        """To the scheduler that runs it, on whichever host. Raises Problem."""
        if node := await found_elsewhere(self.container):
            connection = await reach(node, Kind.TERMINAL)
            return Line(*await asyncio.open_unix_connection(sock=connection, limit=2 * PAYLOAD_LIMIT))
        return await connect(settings.GPUSHARE_HOME)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.line is None:
            return
        try:
            await self.line.send(*frame_of(bytes_data or b""))
        except BadFrame:
            await self._refuse(BAD_FRAME)

    async def disconnect(self, code: int) -> None:
        try:
            if self.passing:
                self.passing.cancel()
                await asyncio.gather(self.passing, return_exceptions=True)
            await self._end()
        finally:
            if self.place:
                self.place.free()  # not before what was started has ended: it is one of so many until then

    async def _end(self) -> None:
        if self.line:
            seconds = round(time.monotonic() - self.opened_at, 1)
            await self.line.hang_up()
            await self._record(f"{self.kind}-closed", seconds=seconds)

    async def _pass_on(self, show: Callable[[], Awaitable[None]]) -> None:
        """Until the output has ended, somebody may no longer look, or the WebSocket is closed."""
        showing = asyncio.ensure_future(show())
        watching = asyncio.create_task(visitor.watch(self.admit, self.scope))
        try:
            await asyncio.wait([showing, watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (showing, watching):
                task.cancel()
            ends = await asyncio.gather(showing, watching, return_exceptions=True)
        with suppress(OSError):  # they have hung up
            if problem := next((end for end in ends if isinstance(end, Problem)), None):
                await self._refuse(problem)
            else:
                await self.close()

    async def _show(self, line: Line) -> None:
        try:
            await self._pass_frames(line)
        except BadFrame:
            raise AWAY from None

    async def _pass_frames(self, line: Line) -> None:
        kind: FrameKind | None = None
        while kind is not FrameKind.END:
            frame = await line.read()
            if frame is None:
                raise AWAY
            kind, payload = frame
            if kind not in FROM_SCHEDULERS:
                raise AWAY
            if kind is FrameKind.REFUSED:
                raise problem_of(payload)
            await self.send(bytes_data=bytes([kind]) + payload)

    async def _refuse(self, problem: Problem) -> None:
        await self.send(text_data=refusal(problem))
        await self.close(4000 + problem.status)

    async def _record(self, action: str, **detail: Any) -> None:
        address = str((self.scope.get("client") or ("",))[0])

        def record() -> None:
            with audit.origin(address):
                audit.record(self.user.get_username(), action, self.container.pk, name=self.container.name, **detail)

        await database_sync_to_async(record)()


class ExecConsumer(ConsoleConsumer):
    kind = "exec"
    waiting: asyncio.Task[None] | None = None

    def admit(self, scope: dict[str, Any]) -> tuple[User, Container]:
        return admit_to_exec(scope)

    async def _begin(self) -> None:
        self.waiting = asyncio.create_task(self._give_up())

    async def _give_up(self) -> None:
        await asyncio.sleep(SAYS_WITHIN)
        await self._refuse(NOTHING_SAID)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.waiting is None:
            await super().receive(text_data, bytes_data)
            return
        self.waiting.cancel()
        self.waiting = None
        try:
            # Elsewhere: to split a word of 64 KiB takes `shlex` a tenth of a second, and all others would wait.
            program = await asyncio.to_thread(lambda: ExecSpec.parse(_json(text_data)))
        except Problem as problem:
            await self._refuse(problem)
        else:
            await self._open(program)

    async def disconnect(self, code: int) -> None:
        if self.waiting:
            self.waiting.cancel()
        await super().disconnect(code)


def _json(text: str | None) -> Any:
    """Raises Problem."""
    if text is not None and len(text) > PAYLOAD_LIMIT:
        raise invalid(TOO_LONG)
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        raise invalid("The first message says in JSON what is to be started.") from None


def admit(scope: dict[str, Any]) -> tuple[User, Container]:
    """Who asks, by token or session, and for which container. Raises Problem if they may not, or no longer."""
    user, container = asked_for(scope)
    require_steering(user, container, "use the console of")
    if not (container.interactive or container.tty):
        raise conflict("This container has no console: launched without -i or -t. Use a shell.", code="no_console")
    return user, container


def admit_to_exec(scope: dict[str, Any]) -> tuple[User, Container]:
    """The same for one more program in it."""
    user, container = asked_for(scope)
    require(user, Deed.EXEC)
    require_steering(user, container, "start anything in")
    return user, container


def asked_for(scope: dict[str, Any]) -> tuple[User, Container]:
    user = visitor.person(scope, by_token=True)
    pk: UUID = scope["url_route"]["kwargs"]["pk"]
    container = Container.objects.select_related("owner").annotate(named_node=F("node__name")).filter(pk=pk).first()
    if container is None:
        raise not_found("There is no such container.")
    return user, container
