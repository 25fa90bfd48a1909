"""Requests borrow a thread each, with its database connection, and hand it on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import AsyncToSync, SyncToAsync, sync_to_async
from django.core.signals import request_finished
from django.db import connection
from django.http import StreamingHttpResponse

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
    await asyncio.to_thread(gone.join, 60)
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


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Handler:
    monkeypatch.setattr(threads, "KEPT", 0)
    return Handler()


@pytest.fixture
def finished() -> Iterator[list[Any]]:
    """The handlers whose requests have been said to have ended."""
    senders: list[Any] = []

    def note(sender: Any, **_: Any) -> None:
        senders.append(sender)

    request_finished.connect(note)
    yield senders
    request_finished.disconnect(note)


class Client:
    """Asks once; leaves when it is asked to."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.heard, self.leave = asyncio.Event(), asyncio.Event()
        self._asked = False

    async def ask(self, app: Handler) -> None:
        scope = {"type": "http", "method": "GET", "path": "/login/", "headers": [(b"host", b"localhost")]}
        await Threads(app)(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._asked:
            await self.leave.wait()
            return {"type": "http.disconnect"}
        self._asked = True
        return {"type": "http.request"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.heard.set()


@pytest.mark.django_db(transaction=True)
async def test_all_that_is_done_for_a_request_is_done_in_the_thread_at_one_go(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, finished: list[Any]
) -> None:
    changes: list[type] = []
    for kind in (SyncToAsync, AsyncToSync):

        def counted(self: Any, *arguments: Any, change: Any = kind.__call__, **named: Any) -> Any:
            changes.append(type(self))
            return change(self, *arguments, **named)

        monkeypatch.setattr(kind, "__call__", counted)
    client = Client()
    await client.ask(handler)
    assert client.sent[0]["status"] == 200
    assert b"</html>" in client.sent[1]["body"]
    assert changes == [SyncToAsync]
    assert finished == [Handler]


@pytest.mark.django_db(transaction=True)
async def test_who_leaves_while_an_answer_streams_ends_it(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, finished: list[Any]
) -> None:
    ended: list[bool] = []

    async def lines() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    monkeypatch.setattr(handler, "get_response", lambda _: StreamingHttpResponse(lines()))
    client = Client()
    asking = asyncio.create_task(client.ask(handler))
    await asyncio.wait_for(client.heard.wait(), 60)
    assert not finished
    client.leave.set()
    await asyncio.wait_for(asking, 60)
    assert (ended, finished) == ([True], [Handler])


@pytest.mark.django_db(transaction=True)
async def test_a_stream_that_breaks_off_tells_the_server(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, finished: list[Any]
) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"first"
        raise OSError("the disk is gone")

    monkeypatch.setattr(handler, "get_response", lambda _: StreamingHttpResponse(lines()))
    client = Client()
    with pytest.raises(OSError, match="the disk is gone"):
        await client.ask(handler)
    assert [message["body"] for message in client.sent[1:]] == [b"first"]
    assert finished == [Handler]
