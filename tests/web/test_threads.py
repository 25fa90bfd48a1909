"""Requests borrow a thread each, with its database connection, and hand it on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import AsyncToSync, SyncToAsync, sync_to_async
from django.core.signals import request_finished
from django.db import connection
from django.http import HttpResponse, StreamingHttpResponse

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

    async def ask(self, app: Handler, method: str = "GET") -> None:
        scope = {"type": "http", "method": method, "path": "/login/", "headers": [(b"host", b"localhost")]}
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


class Slow:
    """Answers of a handler that are not made before they may be."""

    def __init__(self, handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun, self._may = threading.Semaphore(0), threading.Semaphore(0)
        monkeypatch.setattr(handler, "get_response", self._answer)
        self.begun = 0

    def _answer(self, _: Any) -> HttpResponse:
        self.begun += 1
        self._begun.release()
        assert self._may.acquire(timeout=60)
        return HttpResponse(b"made")

    async def begins(self) -> None:
        assert await asyncio.to_thread(self._begun.acquire, timeout=60)

    def go_on(self) -> None:
        self._may.release()


@pytest.fixture
def one_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LOOKING", 1)
    monkeypatch.setattr(threads, "PATIENCE", 3600)


@pytest.mark.django_db(transaction=True)
async def test_who_looks_waits_for_a_turn_and_who_changes_something_does_not(
    one_looks: None, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(handler, monkeypatch)
    async with asyncio.TaskGroup() as clients:
        clients.create_task(Client().ask(handler))
        await slow.begins()
        clients.create_task(Client().ask(handler))
        clients.create_task(Client().ask(handler, "POST"))
        await slow.begins()
        assert slow.begun == 2  # of three: the one that changes something, which had been asked for last
        slow.go_on()
        slow.go_on()
        await slow.begins()
        slow.go_on()


@pytest.mark.django_db(transaction=True)
async def test_what_is_slow_holds_nobody_up_for_longer_than_they_are_patient(
    one_looks: None, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 0)
    slow = Slow(handler, monkeypatch)
    async with asyncio.TaskGroup() as clients:
        for _ in range(2):
            clients.create_task(Client().ask(handler))
            await slow.begins()
        for _ in range(2):
            slow.go_on()
