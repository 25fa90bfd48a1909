"""Requests that are under way: so many of a person, of an address and in all. Whoever has too many is refused."""

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async

from tests.support.constants import with_constants
from tests.support.eventually import PATIENCE, eventually, until
from tests.support.machine import make_gpu, make_node
from tests.support.people import make_user
from tests.support.site import Site, person, running_site
from web.http import gate as gate_module
from web.http.gate import Gate, Opened
from web.models import Command
from web.people import tokens

pytestmark = pytest.mark.django_db(transaction=True)

CONSTANTS = {
    "web.http.gate._of_users.each": 2,
    "web.http.gate._large_bodies.each": 2,
    "web.http.gate._large_bodies.in_all": 3,
    "web.http.gate.ANONYMOUS_BODY_BYTES": 1000,
}


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("at-once"), django_db_blocker, **with_constants(CONSTANTS)) as site:
        yield site


@pytest.fixture
def site(_server: Site) -> Iterator[Site]:
    with _server.database():
        make_gpu(make_node())
        yield _server


def key_of(name: str) -> str:
    return tokens.make(person(name))[1]


def asked(site: Site, key: str, method: str = "GET", path: str = "me", body: Any = None) -> httpx.Response:
    headers = {"Authorization": f"Token {key}"}
    return httpx.request(method, f"{site.url}/api/v1/{path}/", json=body, headers=headers, timeout=PATIENCE)


def test_a_person_has_so_many_requests_under_way_and_others_go_on(site):
    """A launch waits for its outcome: here there is nobody who would do it."""
    ann, bob = key_of("ann"), key_of("bob")

    enough = threading.Event()

    def launch(name: str) -> None:
        """Again and again: on a busy machine one is over, after five seconds, before the other is under way."""
        for turn in itertools.takewhile(lambda _: not enough.is_set(), itertools.count()):
            body = {"image": "local", "command": ["true"], "name": f"{name}-{turn}"}
            asked(site, ann, "POST", "containers", body)

    launching = [threading.Thread(target=launch, args=(name,)) for name in ("one", "two")]
    for thread in launching:
        thread.start()
    try:
        until(lambda: Command.objects.count() >= 2)
        refused = until(lambda: (answer := asked(site, ann)).status_code != 200 and answer, every=0.1)
    finally:
        enough.set()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["message"] == "You have 2 requests under way already. Try again in a moment."
    assert asked(site, bob).status_code == 200
    for thread in launching:
        thread.join()
    assert asked(site, ann).status_code == 200


def test_so_many_large_bodies_are_on_their_way_at_once(site):
    made: list[socket.socket] = []

    def begin(key: str) -> None:
        """A request whose large body does not come."""
        one = socket.create_connection(("127.0.0.1", int(site.url.rpartition(":")[2])), timeout=60)
        made.append(one)
        head = f"POST /api/v1/containers/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Token {key}\r\n"
        one.sendall(f"{head}Content-Length: 5000\r\nExpect: 100-continue\r\n\r\n".encode())
        assert one.recv(100).startswith(b"HTTP/1.1 100 ")  # it is waited for

    def refusal(key: str) -> str:
        refused = asked(site, key, "POST", "containers", {"command": ["x" * 5000]})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        message: str = refused.json()["error"]["message"]
        return message

    ann, bob = key_of("ann"), key_of("bob")
    begin(ann)
    begin(ann)
    assert refusal(ann) == "Too many large requests are under way by you (2 at once). End one, or try again later."
    assert asked(site, ann).status_code == 200, "a small one is no matter"
    begin(bob)
    assert refusal(bob) == "Too many large requests are under way here (3 at once). End one, or try again later."
    for one in made:
        one.close()
    until(lambda: asked(site, ann, "POST", "containers", {"command": ["x" * 5000]}).status_code == 400)


async def test_a_large_body_keeps_its_place_until_it_is_answered(monkeypatch):
    """It lies in memory, and a launch waits up to five seconds: 32 of one person's lay there at once."""
    monkeypatch.setattr(gate_module._large_bodies, "each", 2)
    monkeypatch.setattr(gate_module, "ANONYMOUS_BODY_BYTES", 1000)
    _, key = await sync_to_async(tokens.make)(await sync_to_async(make_user)("dan"))
    app = Waiting()
    gate = Gate(app)
    head = [(b"content-length", b"2000"), (b"authorization", f"Token {key}".encode())]

    async def ask() -> int:
        """With which status it is answered."""
        said: list[dict[str, Any]] = []
        left = [{"type": "http.request", "body": b"x" * 2000}]

        async def receive() -> dict[str, Any]:
            return left.pop() if left else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        scope = {"type": "http", "path": "/api/v1/containers/", "headers": head, "client": ("192.0.2.9", 1)}
        await gate(scope, receive, send)
        return int(said[0]["status"])

    first = [asyncio.create_task(ask()) for _ in range(2)]
    await eventually(lambda: app.waiting == 2)
    assert await asyncio.wait_for(ask(), PATIENCE) == 429
    app.go_on.set()
    assert await asyncio.gather(*first) == [200, 200]
    assert await ask() == 200


async def test_a_byte_more_of_a_body_costs_as_much_as_the_one_before():
    """All that had come was counted again for each: a stranger's 32 KiB, byte by byte, took minutes of the loop."""
    asked = 0

    class Part(bytes):
        def __len__(self) -> int:
            nonlocal asked
            asked += 1
            return super().__len__()

    left = 500

    async def receive() -> dict[str, Any]:
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": Part(b"x"), "more_body": left > 0}

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"x" * 500

    scope = {"type": "http", "path": "/login/", "headers": [(b"transfer-encoding", b"chunked")]}
    await Gate(app)(scope, receive, receive)
    assert asked <= 1000


class Waiting:
    """An application whose answers wait until `go_on`; a request of ADDRESS becomes this user's."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.whose: dict[str, int] = {}
        self.waiting = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        opened: Opened = scope["gpushare.opened"]
        if user := self.whose.get(scope["client"][0]):
            opened.belongs_to(user)
        self.waiting += 1
        await self.go_on.wait()
        self.waiting -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.budget("requests_at_once_of_an_address", "requests_at_once_in_all")
async def test_requests_of_nobody_yet_are_their_addresss_and_all_together_are_so_many(settings):
    settings.GPUSHARE_BUDGETS = replace(
        settings.GPUSHARE_BUDGETS, requests_at_once_of_an_address=2, requests_at_once_in_all=4
    )
    app = Waiting()
    app.whose["192.0.2.2"] = 7
    gate, running = Gate(app), set[asyncio.Task[None]]()

    async def ask(address: str) -> Any:
        """The message if it is refused; else None, and it is under way."""
        said: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        scope = {"type": "http", "path": "/api/v1/me/", "headers": [], "client": (address, 1)}
        waiting = app.waiting
        running.add(asyncio.create_task(gate(scope, receive, send)))
        await eventually(lambda: len(said) > 1 or app.waiting > waiting)
        return json.loads(said[1]["body"])["error"]["message"] if said else None

    full = "Too many requests are under way, from your address or in all. Try again in a moment."
    assert [await ask("192.0.2.1") for _ in range(3)] == [None, None, full], "of one address"
    assert [await ask("192.0.2.2") for _ in range(2)] == [None, None], "a user's are no longer the address's"
    assert await ask("192.0.2.3") == full, "of everybody"
    app.go_on.set()
    await asyncio.gather(*running)
    app.go_on.clear()
    assert await ask("192.0.2.3") is None
    app.go_on.set()
    await asyncio.gather(*running)
