"""Requests borrow a thread each, with its database connection, and hand it on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import AsyncToSync, SyncToAsync, sync_to_async
from django.db import connection

from appliance import threads
from appliance.threads import Handler, Threads

Seen = tuple[threading.Thread, object]


def connect() -> Seen:
    connection.ensure_connection()
    return threading.current_thread(), connection.connection


class Requests:
    """Each does something synchronous twice: before and after all that were made with it have come as far."""

    def __init__(self) -> None:
        self.app = Threads(self._serve)

    async def _serve(self, *_: object) -> None:
        first = await sync_to_async(connect)()
        await self.together.wait()
        self.seen.append((first, await sync_to_async(connect)()))

    async def run(self, at_once: int) -> list[tuple[Seen, Seen]]:
        self.seen: list[tuple[Seen, Seen]] = []
        self.together = asyncio.Barrier(at_once)
        await asyncio.gather(*(self.app({}, None, None) for _ in range(at_once)))  # type: ignore[arg-type]
        return self.seen


@pytest.mark.django_db(transaction=True)
async def test_a_request_takes_over_the_thread_and_the_connection_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "KEPT", 1)
    requests = Requests()
    [(first, second)] = await requests.run(1)
    assert first == second
    assert await requests.run(1) == [(first, first)]
    both = await requests.run(2)
    assert all(start == end for start, end in both)
    assert len({start[0] for start, _ in both}) == 2
    # One stays for the next request; the thread of the other ends, and its connection with it.
    [(last, _)] = await requests.run(1)
    [(gone, _)] = {start for start, _ in both} - {last}
    await asyncio.to_thread(gone.join, 10)
    assert not gone.is_alive()
    monkeypatch.setattr(threads, "KEPT", 0)
    await requests.run(1)  # or its connection would hold the test's database


@pytest.mark.django_db(transaction=True)
async def test_a_request_that_fails_hands_its_thread_on() -> None:
    seen: list[threading.Thread] = []

    async def fail(*_: object) -> None:
        seen.append(await sync_to_async(threading.current_thread)())
        raise ValueError("broken")

    app = Threads(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await app({}, None, None)  # type: ignore[arg-type]
    assert seen[0] is seen[1]


@pytest.mark.django_db(transaction=True)
async def test_middleware_and_view_are_called_in_the_thread_at_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[type] = []
    for kind in (SyncToAsync, AsyncToSync):

        def counted(self: Any, *arguments: Any, change: Any = kind.__call__, **named: Any) -> Any:
            changes.append(type(self))
            return change(self, *arguments, **named)

        monkeypatch.setattr(kind, "__call__", counted)
    monkeypatch.setattr(threads, "KEPT", 0)
    told: list[dict[str, Any]] = []
    messages = [{"type": "http.request"}]

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(message: dict[str, Any]) -> None:
        told.append(message | {"changes": list(changes)})

    scope = {"type": "http", "method": "GET", "path": "/login/", "headers": [(b"host", b"localhost")]}
    await Threads(Handler())(scope, receive, send)
    assert told[0]["status"] == 200
    assert told[0]["changes"] == [SyncToAsync, SyncToAsync]  # what Django does when a request begins; the request
