"""What stands before WebSockets, and who is believed to be where. Real servers, real handshakes."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from django.conf import settings as ours
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from appliance.asgi import application
from tests.support.constants import with_constants
from tests.support.eventually import PATIENCE, eventually
from tests.support.machine import make_node
from tests.support.site import Site, person, running_site
from web import budgets
from web.http import gate, sockets
from web.http.sockets import _paced, is_own
from web.models import AuditEntry
from web.people import tokens

pytestmark = pytest.mark.django_db(transaction=True)

PROXY = "127.0.0.77"
SETTINGS = {
    "GPUSHARE_TRUSTED_PROXIES": f"{PROXY} 10.0.0.0/8",
    "GPUSHARE_BUDGET_WEBSOCKETS_OF_AN_ADDRESS": "3",
    "GPUSHARE_BUDGET_WEBSOCKETS_IN_ALL": "5",
    "GPUSHARE_BUDGET_SIGN_INS_A_MINUTE": "5",
} | with_constants({"web.live.consumer._open.each": 2})


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("sockets"), django_db_blocker, **SETTINGS) as site:
        yield site


@pytest.fixture
def site(_server: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # the rows are made before anything is awaited
    with _server.database():
        make_node()
        yield _server


@pytest.fixture
def cookies(site: Site) -> list[str]:
    """Of Ann, of Bob and of Cat."""
    made = [site.cookie(person(name)) for name in ("ann", "bob", "cat")]
    return [f"{each['name']}={each['value']}" for each in made]


@pytest.fixture
def cookie(cookies: list[str]) -> str:
    return cookies[0]


def dashboard(site: Site, cookie: str, address: str = "127.0.0.1", **given: Any) -> connect:
    return to(site, "/ws/dashboard/", {"Cookie": cookie}, address, **given)


def to(site: Site, path: str, headers: dict[str, str], address: str = "127.0.0.1", **given: Any) -> connect:
    given = {"origin": site.url, **given}
    return connect(
        f"ws{site.url.removeprefix('http')}{path}", additional_headers=headers, local_addr=(address, 0),
        proxy=None, open_timeout=PATIENCE, **given,
    )  # fmt: skip


async def refused(handshake: connect) -> tuple[int, bytes]:
    with pytest.raises(InvalidStatus) as caught:
        async with handshake:
            pass
    return caught.value.response.status_code, bytes(caught.value.response.body or b"")


async def close_code(socket: ClientConnection) -> int:
    """With which the server ends it."""
    try:
        async with asyncio.timeout(60):
            while True:
                await socket.recv()
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else 0


@pytest.mark.parametrize("path", ["/ws/nothing/", "/ws/", "/", "/ws/containers/7/console/", "/ws/dashboard/more"])
async def test_an_unknown_path_is_404(site, cookie, path):
    assert await refused(to(site, path, {"Cookie": cookie})) == (404, b"There is no WebSocket at this address.\n")
    assert "Traceback" not in (site.home / "server.log").read_text()


async def test_a_page_that_a_container_publishes_may_not_open_one(site, cookie):
    """http://host:20080 is the same site to a browser, which sends our cookies along."""
    elsewhere = f"{site.url.rpartition(':')[0]}:20080"
    for origin in (elsewhere, "https://elsewhere.example", "null", None):
        assert (await refused(dashboard(site, cookie, origin=origin)))[0] == 403, origin
    async with dashboard(site, cookie) as socket:
        assert json.loads(await socket.recv())["type"] == "snapshot"


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "own"),
    [
        ("http://localhost:8000", "localhost:8000", "ws", True),
        ("http://localhost", "localhost", "ws", True),
        ("http://localhost:80", "localhost", "ws", True),
        ("https://localhost", "localhost", "ws", True),  # a proxy with TLS that does not say so
        ("https://localhost", "localhost:443", "wss", True),
        ("http://[::1]:8000", "[::1]:8000", "ws", True),
        ("http://localhost:20080", "localhost:8000", "ws", False),
        ("http://localhost:20080", "localhost", "ws", False),
        ("http://localhost", "localhost", "wss", False),
        ("http://127.0.0.1:8000", "localhost:8000", "ws", False),
        ("http://evil.example", "evil.example", "ws", False),  # a name that leads here, and is not ours
        ("http://localhost:x", "localhost", "ws", False),
        ("file://localhost", "localhost", "ws", False),
        ("null", "localhost", "ws", False),
        ("", "", "ws", False),
        ("https://gpu1.lab.example", "127.0.0.1:8000", "ws", True),
    ],
)
def test_which_origin_is_ours(settings, origin, host, scheme, own):
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://gpu1.lab.example"]
    assert is_own(origin, host, scheme) is own


async def test_deep_and_large_and_strange_messages_are_no_failure(site, cookie):
    log = (site.home / "server.log").read_text()
    async with dashboard(site, cookie) as socket:
        assert json.loads(await socket.recv())["type"] == "snapshot"
        for text in ("[" * 60_000, '{"type":' * 7_000, "x" * 60_000, "", "null", '{"type": {}}', b"\0"):
            await socket.send(text)
        await socket.send('{"type": "resync"}')
        async with asyncio.timeout(60):
            while json.loads(await socket.recv())["type"] != "snapshot":
                pass
        await socket.send("x" * (1 << 20))
        assert await close_code(socket) == 1009  # too big
    assert (site.home / "server.log").read_text()[len(log) :].count("Traceback") == 0


async def test_everything_is_sent_again_once_a_second_at_most(site, cookie):
    async with dashboard(site, cookie) as socket:
        await socket.recv()
        whole, loop = 0, asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(50):
            await socket.send('{"type": "resync"}')
        async with asyncio.timeout(60):
            while whole < 1 or loop.time() - begun < 2.5:  # a sign of life comes every two seconds
                whole += json.loads(await socket.recv())["type"] == "snapshot"
        assert whole <= loop.time() - begun + 2


async def test_a_place_comes_free_however_much_was_asked_before(site, cookie):
    """A person has two places. Each question was worked on for a second, and the end came after all of them."""

    async def had_a_place() -> bool:
        with contextlib.suppress(ConnectionClosed):
            async with dashboard(site, cookie) as socket:
                assert json.loads(await socket.recv())["type"] == "snapshot"
                for _ in range(100):
                    await socket.send('{"type": "resync"}')
            return True
        return False

    for _ in range(3):
        await eventually(had_a_place)


@pytest.mark.budget("websockets_of_an_address", "websockets_in_all")
async def test_so_many_are_open_at_once_and_a_place_comes_free(site, cookies):
    ann, bob, cat = cookies
    async with AsyncExitStack() as stack:

        async def opened(who: str, address: str) -> ClientConnection:
            """At last: the place of one that was closed is free a moment later."""

            async def once() -> ClientConnection | None:
                with contextlib.suppress(InvalidStatus, ConnectionClosed):
                    socket: ClientConnection = await stack.enter_async_context(dashboard(site, who, address))
                    assert json.loads(await socket.recv())["type"] == "snapshot"
                    return socket
                return None

            return await eventually(once)

        first, _ = [await opened(ann, "127.0.0.81") for _ in range(2)]
        async with dashboard(site, ann, "127.0.0.82") as third:
            assert await close_code(third) == 4429, "of one person, wherever they are"
        await opened(bob, "127.0.0.81")
        full = b"Too many WebSockets are open, from your address or in all. Close one.\n"
        assert await refused(dashboard(site, cat, "127.0.0.81")) == (429, full), "of one address"
        await opened(bob, "127.0.0.82")
        await opened(cat, "127.0.0.83")
        assert await refused(dashboard(site, cat, "127.0.0.84")) == (429, full), "of everybody"
        await first.close()
        await opened(cat, "127.0.0.84")


async def test_handshakes_of_an_address_are_so_many_a_second_as_requests(settings, monkeypatch):
    """For each a token was looked for, as often as a stranger could ask. Who was refused comes back, as a page does."""
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.GPUSHARE_BUDGETS = replace(settings.GPUSHARE_BUDGETS, requests_a_second=3)
    window, looked_for = [1], list[str]()
    monkeypatch.setattr(gate, "spend", lambda name, key, _: budgets.spend(name, f"{key}:{window}", 3600))
    find = tokens.find
    monkeypatch.setattr(tokens, "find", lambda key: looked_for.append(key) or find(key))

    async def shake() -> int:
        """The status that it is refused with, or the close code."""
        said: list[dict[str, Any]] = []
        comes = [{"type": "websocket.disconnect", "code": 4401}, {"type": "websocket.connect"}]

        async def receive() -> dict[str, Any]:
            if len(comes) == 1:
                await eventually(lambda: any("code" in message for message in said))
            return comes.pop()

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        headers = {"host": "testserver", "origin": "http://testserver", "authorization": "Token gps_guess"}
        scope = {
            "type": "websocket", "path": "/ws/containers/00000000-0000-0000-0000-000000000007/exec/",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "client": ("192.0.2.7", 1),
            "query_string": b"", "subprotocols": [], "extensions": {"websocket.http.response": {}},
        }  # fmt: skip
        await application(scope, receive, send)
        return next(message.get("code") or message["status"] for message in said if {"code", "status"} & {*message})

    assert [await shake() for _ in range(6)] == [4401] * 3 + [429] * 3
    assert looked_for == ["gps_guess"] * 3
    window[0] += 1
    assert await shake() == 4401


async def test_who_sends_more_than_its_budget_is_heard_in_the_next_second(monkeypatch):
    monkeypatch.setattr(sockets, "MESSAGES_A_SECOND", 3)
    waited: list[float] = []
    now = 100.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        waited.append(seconds)
        now += seconds

    async def message() -> dict[str, str]:
        return {"type": "websocket.receive", "text": "{}"}

    monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(budgets, "asyncio", SimpleNamespace(sleep=sleep))
    receive = _paced(message)
    for _ in range(10):
        await receive()
    assert waited == [1.0, 1.0]


def sign_in(site: Site, address: str, forwarded: str | None, password: str = "wrong") -> int:
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=60) as client:
        body = {"username": "ann", "password": password}
        return client.post(f"{site.url}/api/v1/sign-in/", json=body, headers=headers).status_code


def test_nobody_but_a_trusted_proxy_is_believed_about_addresses(site):
    person("ann")
    assert [sign_in(site, "127.0.0.80", f"192.0.2.{n}") for n in range(6)] == [401] * 5 + [429]
    assert set(AuditEntry.objects.values_list("address", flat=True)) == {"127.0.0.80"}


def test_behind_a_trusted_proxy_the_rightmost_address_that_is_none_counts(site):
    person("ann")
    assert sign_in(site, PROXY, "203.0.113.5, 192.0.2.7, 10.1.2.3") == 401
    assert AuditEntry.objects.latest("id").address == "192.0.2.7"
    assert [sign_in(site, PROXY, f"203.0.113.{n}, 192.0.2.8") for n in range(6)] == [401] * 5 + [429]
    assert sign_in(site, PROXY, "192.0.2.9") == 401, "another person behind the same proxy notices nothing"


def test_behind_tls_cookies_belong_to_this_origin_alone(tmp_path, django_db_blocker):
    with running_site(tmp_path, django_db_blocker, GPUSHARE_TLS="1") as behind, behind.database():
        person("ann")
        page = httpx.get(f"{behind.url}/login/", timeout=PATIENCE)
        assert page.headers["strict-transport-security"] == "max-age=31536000"
        header = page.headers["set-cookie"]
        assert header.startswith("__Host-csrftoken=")
        assert {"Secure", "Path=/"} <= {part.strip() for part in header.split(";")}
        assert "Domain" not in header
        status, why = asyncio.run(refused(to(behind, "/ws/dashboard/", {})))
        assert (status, b"https only: gpushare login https://ADDRESS" in why) == (403, True)
    assert ours.SESSION_COOKIE_NAME == "sessionid"
