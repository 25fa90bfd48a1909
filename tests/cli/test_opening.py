"""`gpushare open`: what is changed in the heads between a browser and an application, and the whole way."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import h11
import httpx
import pytest

from appliance.cli.opening.accounts import is_ours
from appliance.heads import Names, Near, OwnAnswer, Passing, Route, Way, label, require_own
from tests.cli.support import ENTRY, environment, gpushare
from tests.support.appliance import Appliance
from tests.support.eventually import PATIENCE, eventually
from tests.support.terminal import Terminal

OWN, INNER = "lab-8888.localhost:9000", "localhost:8888"
HEAD = f"GET /lab HTTP/1.1\r\nHost: {OWN}\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@asynccontextmanager
async def pair(answer: bytes) -> AsyncIterator[tuple[Near, list[bytes]]]:
    """A connection to an application that keeps what it is asked, and answers each head with this."""
    asked: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(1 << 16):
            asked.append(head)
            writer.write(answer)
            if not answer or answer.startswith(b"HTTP/1.1 101"):
                break
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield Near(*await asyncio.open_connection(*server.sockets[0].getsockname())), asked


async def asked(request: str, answer: bytes = OK, problem: OwnAnswer | None = None) -> tuple[bytes, list[bytes]]:
    """What the browser gets that sends this and nothing more after it, and what the application was asked."""
    names = Names(f"http://{OWN}", INNER)
    async with pair(answer) as (application, heard):

        async def dial() -> Near:
            if problem:
                raise problem
            return application

        async def route(asked: h11.Request) -> Way:
            require_own(asked, names)
            return Way("lab", names, dial)

        before, line, last = request.rpartition(" HTTP/1.1\r\n")
        if line and "Upgrade: " not in last:
            request = f"{before}{line}Connection: close\r\n{last}"
        got = await answered(request.encode(), route)
        with contextlib.suppress(ConnectionError):
            await application.close()
        return got, heard


async def answered(request: bytes, route: Route) -> bytes:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Passing(Near(reader, writer), route).serve()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(request)
        got = await reader.read()
        writer.close()
        return got


@pytest.mark.parametrize(
    ("sent", "heard"),
    [
        ("", f"Host: {INNER}"),
        (f"Origin: http://{OWN}\r\n", f"Origin: http://{INNER}"),
        (
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
            "Sec-Fetch-Site: none",
        ),
        (f"Referer: http://{OWN}/tree?x=1\r\n", f"Referer: http://{INNER}/tree?x=1"),
        ("Cookie: a=1\r\n", "Cookie: a=1"),
    ],
)
async def test_the_application_is_asked_by_the_name_that_it_knows(sent: str, heard: str) -> None:
    answer, received = await asked(f"{HEAD}{sent}\r\n")
    assert answer.endswith(b"\r\n\r\nhi")
    assert f"\r\n{heard}\r\n".lower().encode() in received[0].lower()


async def test_two_requests_on_one_connection_and_a_body_pass() -> None:
    post = f"POST /save HTTP/1.1\r\nHost: {OWN}\r\nContent-Length: 4\r\n\r\nbody"
    answer, received = await asked(f"{post}{HEAD}\r\n")
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"".join(received).count(b"body") == 1


async def test_a_redirect_to_itself_leads_back_to_the_browser_s_name() -> None:
    moved = f"HTTP/1.1 302 Found\r\nLocation: http://{INNER}/lab?\r\nContent-Length: 0\r\n\r\n".encode()
    answer, _ = await asked(f"{HEAD}\r\n", moved)
    assert f"http://{OWN}/lab?".encode() in answer


async def test_after_an_upgrade_bytes_pass_as_they_are() -> None:
    upgraded = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x02no HTTP"
    upgrade = f"{HEAD}Upgrade: websocket\r\nConnection: Upgrade\r\nOrigin: http://{OWN}\r\n\r\n"
    answer, received = await asked(upgrade, upgraded)
    assert answer.endswith(b"\x81\x02no HTTP")
    assert b"upgrade: websocket" in received[0].lower()


@pytest.mark.parametrize(
    ("request_", "answer", "problem", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", OK, None, b"421"),
        ("GET / HTTP/1.0\r\n\r\n", OK, None, b"421"),
        ("no HTTP at all\r\n\r\n", OK, None, b"400"),
        (f"{HEAD}\r\n", b"no HTTP at all\r\n\r\n", None, b"502"),
        (f"{HEAD}\r\n", b"", None, b"502"),
        (f"{HEAD}\r\n", OK, OwnAnswer(502, "Nothing listens on port 8888 yet."), b"502"),
    ],
)
async def test_what_makes_no_sense_is_answered(
    request_: str, answer: bytes, problem: OwnAnswer | None, status: bytes
) -> None:
    got, received = await asked(request_, answer, problem)
    assert got.startswith(b"HTTP/1.1 " + status), got
    assert (not received) is (answer is OK)


@pytest.mark.parametrize(
    "sent",
    ["Origin: https://evil.example", f"Origin: http://{OWN}.evil.example", "Origin: null", f"Origin: https://{OWN}",
     "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image",
     "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe",
     "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty",
     "Upgrade: websocket\r\nConnection: Upgrade\r\nOrigin: https://evil.example"],
)  # fmt: skip
async def test_a_page_elsewhere_reaches_no_application(sent: str) -> None:
    answer, received = await asked(f"{HEAD}{sent}\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403")
    assert not received


async def test_an_application_sets_cookies_of_its_own_name_only() -> None:
    cookies = b"Set-Cookie: a=1; Path=/; DOMAIN = localhost; HttpOnly\r\nSet-Cookie: domain=2\r\n"
    answer, _ = await asked(f"{HEAD}\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + cookies + b"\r\n")
    assert b"set-cookie: a=1; path=/; httponly\r\n" in answer.lower()


@pytest.mark.parametrize(
    "header",
    ['Clear-Site-Data: "cookies"', 'Alt-Svc: h2=":20001"', "Set-Cookie: __Host-Http-gpushare=mine; Path=/",
     "Set-Cookie: =__Host-Http-gpushare=mine; Path=/", "X-Accel-Redirect: /internal", "X-Sendfile: /etc/shadow",
     "X-LIGHTTPD-send-file: /etc/shadow", "X-LiteSpeed-Location: /internal", "X-Reproxy-URL: http://127.0.0.1/"],
)  # fmt: skip
async def test_an_answer_reaches_nothing_beyond_the_application(header: str) -> None:
    answer, _ = await asked(f"{HEAD}\r\n", f"HTTP/1.1 200 OK\r\n{header}\r\nContent-Length: 2\r\n\r\nhi".encode())
    assert header.partition(":")[0].lower().encode() not in answer.lower()
    assert answer.endswith(b"hi")


@pytest.mark.parametrize(
    ("sent", "heard"),
    [("__Host-Http-gpushare=secret", None), ("a=1; __HOST-http-GPUSHARE-state=secret; b=2", "a=1; b=2")],
)
async def test_the_door_s_cookies_and_what_a_proxy_says_reach_no_application(sent: str, heard: str | None) -> None:
    said = f"Cookie: {sent}\r\nX-Forwarded-Host: gpu1\r\nForwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\n"
    _, received = await asked(f"{HEAD}{said}\r\n")
    asking = received[0].decode().lower()
    assert "secret" not in asking
    assert "1.2.3.4" not in asking
    assert "gpu1" not in asking
    assert (f"cookie: {heard}\r\n" in asking) if heard else ("cookie" not in asking)


@pytest.mark.parametrize("origin", ["", f"Origin: http://{OWN}\r\n"])
async def test_an_application_gets_its_name_in_the_browser_where_it_has_no_origin_to_compare(origin: str) -> None:
    """Gradio makes addresses of it; code-server refuses an Origin that is another's."""
    _, received = await asked(f"{HEAD}{origin}\r\n")
    asking = received[0].decode().lower()
    names = f"x-forwarded-host: {OWN}\r\nx-forwarded-proto: http\r\n"
    assert (names in asking, "x-forwarded" in asking) == ((False, False) if origin else (True, True))


async def test_an_application_that_has_hung_up_in_between_is_dialled_anew() -> None:
    """As Node does after five seconds; a browser sends its next request by the same connection all the same."""
    dialled: list[Near] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        writer.close()
        await writer.wait_closed()

    async def dial() -> Near:
        dialled.append(Near(*await asyncio.open_connection(*application.sockets[0].getsockname())))
        return dialled[-1]

    async def route(_: h11.Request) -> Way:
        await eventually(lambda: not dialled or dialled[-1].has_ended)
        return Way("lab", Names(f"http://{OWN}", INNER), dial)

    application = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with application:
        both = f"{HEAD}\r\n{HEAD}Connection: close\r\n\r\n"
        assert (await answered(both.encode(), route)).count(b"HTTP/1.1 200") == 2
    assert len(dialled) == 2


async def test_a_browser_that_leaves_while_an_application_thinks_is_noticed() -> None:
    thinks, left = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        thinks.set()
        await reader.read()
        writer.close()
        left.set()

    async def dial() -> Near:
        return Near(*await asyncio.open_connection(*application.sockets[0].getsockname()))

    async def route(_: h11.Request) -> Way:
        return Way("lab", Names(f"http://{OWN}", INNER), dial)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Passing(Near(reader, writer), route).serve()

    application = await asyncio.start_server(talk, "127.0.0.1", 0)
    door = await asyncio.start_server(one, "127.0.0.1", 0)
    async with application, door, asyncio.timeout(PATIENCE):
        _, writer = await asyncio.open_connection(*door.sockets[0].getsockname())
        writer.write(f"{HEAD}\r\n".encode())
        await thinks.wait()
        writer.close()
        await left.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another account")
async def test_another_account_of_this_machine_is_not_let_in() -> None:
    seen: asyncio.Queue[bool] = asyncio.Queue()

    async def one(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.put_nowait(is_ours(writer.get_extra_info("peername"), writer.get_extra_info("sockname")))
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    connect = f"import socket; socket.create_connection(('127.0.0.1', {server.sockets[0].getsockname()[1]})).recv(1)"
    async with server:
        for user in (0, 65534):
            client = await asyncio.create_subprocess_exec("/usr/bin/python3", "-Ic", connect, user=user)
            assert await client.wait() == 0
    assert [seen.get_nowait(), seen.get_nowait()] == [True, False]


@pytest.mark.parametrize(
    ("name", "shown"), [("lab", "lab"), ("Ada_s.Lab", "ada-s-lab"), ("..", "container"), ("x" * 80, "x" * 48)]
)
def test_a_name_becomes_a_part_of_a_host_name_that_no_other_container_has(name: str, shown: str) -> None:
    for start in ("12345678", "abcdef01"):
        assert label(name, f"{start}-0000") == f"{shown}-{start}"


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = Appliance(tmp_path_factory.mktemp("opening") / "var")
    yield made
    made.close()


SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.headers['Host']} {self.path}".encode())
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_the_browser_reaches_what_listens_on_the_container_s_loopback(appliance: Appliance) -> None:
    command = ["python3", "-c", SERVER]
    made = appliance.api("POST", "containers/", {"image": "local", "command": command, "name": "lab"})
    words = ["open", "lab", "--no-browser", "--path", "tree"]
    with Terminal([*ENTRY, *words], environment(appliance.environ)) as opening:
        shown = opening.until("/tree")
        host, _, port = shown.rpartition("http://")[2].removesuffix("/tree").rpartition(":")
        headers = {"Host": f"{host}:{port}"}
        answer = httpx.get(f"http://127.0.0.1:{port}/tree", headers=headers, trust_env=False, timeout=PATIENCE)
        opening.signal(signal.SIGINT)
        assert opening.exit_code() == 0
    inner = gpushare("logs", "lab", environ=appliance.environ).stdout.split()[0]
    assert (host, answer.text) == (f"lab-{made['id'][:8]}-{inner}.localhost", f"localhost:{inner} /tree")
    audit = appliance.api("GET", "audit/?action=port-opened")["results"]
    assert [each["subject"] for each in audit] == [made["id"]]
