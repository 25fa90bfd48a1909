"""Strangers at the web server's port: half requests, large bodies, many connections. Real sockets on loopback.

Every address of 127.0.0.0/8 is this host's, so each test is an address of its own.
"""

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.constants import with_constants
from tests.support.eventually import PATIENCE, until
from tests.support.machine import make_container
from tests.support.site import PASSWORD, Site, person, running_site
from web.people import tokens

pytestmark = pytest.mark.django_db(transaction=True)

EACH, ALL = 20, 60
BUDGETS = {
    "HTTP_CONNECTIONS_OF_AN_ADDRESS": EACH, "HTTP_CONNECTIONS_IN_ALL": ALL, "REQUESTS_A_SECOND": 50,
    "LOG_FOLLOWERS": 2,
}  # fmt: skip
WITHIN = ("appliance.running.doors.HEADER_SECONDS", "web.http.gate.BODY_SECONDS")
SLOW_COMERS = pytest.mark.parametrize("site", [2], indirect=True)  # seconds for a head, and for a body; else 600
CONSTANTS = {
    "django.conf.settings.DATA_UPLOAD_MAX_MEMORY_SIZE": 200_000, "web.http.gate.ANONYMOUS_BODY_BYTES": 20_000,
}  # fmt: skip
HEAD = b"POST /api/v1/sign-in/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def _servers(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[Callable[[int], Site]]:
    budgets = {f"GPUSHARE_BUDGET_{name}": str(value) for name, value in BUDGETS.items()}
    with ExitStack() as stack:

        @cache
        def within(seconds: int) -> Site:
            given = budgets | with_constants(CONSTANTS | dict.fromkeys(WITHIN, seconds))
            home = tmp_path_factory.mktemp("doors")
            return stack.enter_context(running_site(home, django_db_blocker, **given))

        yield within


@pytest.fixture
def site(_servers: Callable[[int], Site], request: pytest.FixtureRequest) -> Iterator[Site]:
    site = _servers(getattr(request, "param", 600))
    with site.database():
        yield site


@pytest.fixture
def key(site: Site) -> str:
    return tokens.make(person("ann"))[1]


class Stranger:
    """Connections from one address, closed at the end of the test."""

    def __init__(self, site: Site, address: str) -> None:
        self._to, self._from = ("127.0.0.1", int(site.url.rpartition(":")[2])), address
        self.open: list[socket.socket] = []

    def connect(self, say: bytes = b"") -> socket.socket:
        made = socket.create_connection(self._to, timeout=60, source_address=(self._from, 0))
        self.open.append(made)
        made.sendall(say)
        return made

    def close(self) -> None:
        for made in self.open:
            made.close()


@pytest.fixture
def stranger(site: Site) -> Iterator[Any]:
    made: list[Stranger] = []

    def come(address: str) -> Stranger:
        made.append(Stranger(site, address))
        return made[-1]

    yield come
    for each in made:
        each.close()


def ask(site: Site, key: str, address: str = "127.0.0.9") -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=60) as client:
        return client.get(f"{site.url}/api/v1/me/", headers={"Authorization": f"Token {key}"})


def closed(made: socket.socket) -> bool:
    made.settimeout(0)
    try:
        return made.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def ended_after(comer: Stranger, head: bytes, word: bytes) -> float:
    """Seconds from before the connection for which one could go on saying this word, after this head."""
    began = time.monotonic()
    made = comer.connect(head)
    with suppress(BrokenPipeError, ConnectionResetError):
        until(lambda: made.sendall(word), every=0.05)  # which says nothing
    return time.monotonic() - began


def answer_to(made: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """What is said until the connection is closed."""
    said = b""
    while part := made.recv(65536):
        said += part
    head, _, body = said.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, body


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(site, stranger):
    made = stranger("127.0.0.10").connect(HEAD + b"Content-Length: 629145600\r\nExpect: 100-continue\r\n\r\n")
    status, headers, body = answer_to(made)
    assert (status, headers["connection"], headers["content-type"]) == (413, "close", "application/json")
    assert json.loads(body)["error"]["message"] == "The body of a request may have 195.31 KiB at most."


def test_a_stranger_may_send_less_than_who_is_signed_in(site, stranger, key):
    body = json.dumps({"image": "local", "command": ["x" * 50_000]})
    anonymous = httpx.post(f"{site.url}/api/v1/containers/", content=body, timeout=PATIENCE)
    assert anonymous.status_code == 413
    assert anonymous.json()["error"]["message"].endswith("unless you sign in first.")
    made_up = {"Authorization": "Token gps_nobody"}
    assert (
        httpx.post(f"{site.url}/api/v1/containers/", content=body, headers=made_up, timeout=PATIENCE).status_code == 413
    )
    known = httpx.post(
        f"{site.url}/api/v1/containers/", content=body, headers={"Authorization": f"Token {key}"}, timeout=PATIENCE
    )
    assert known.json()["error"]["field"] == "command"  # it was read
    cookie = site.cookie(person("ann"))
    session = httpx.post(
        f"{site.url}/api/v1/containers/", content=body, cookies={cookie["name"]: cookie["value"]}, timeout=PATIENCE
    )
    assert session.status_code == 403  # read, and found to be without the token against forged requests


def sent_in_chunks(comer: Stranger, key: str, path: str, body: bytes, size: int = 7) -> tuple[int, Any]:
    """Status and answer, for a body that comes in pieces of `size` bytes."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Token {key}\r\nConnection: close\r\n"
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    made = comer.connect(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    status, _, answer = answer_to(made)
    return status, json.loads(answer)


def test_a_body_in_chunks_may_be_no_larger_than_one_with_a_length(site, stranger, key):
    body = json.dumps({"name": "x" * 300_000}).encode()
    headers = {"Authorization": f"Token {key}"}
    with_length = httpx.post(f"{site.url}/api/v1/tokens/", content=body, headers=headers, timeout=PATIENCE)
    in_chunks = sent_in_chunks(stranger("127.0.0.16"), key, "/api/v1/tokens/", body, 50_000)
    assert in_chunks == (with_length.status_code, with_length.json())
    assert in_chunks[0] == 413


def test_a_form_in_chunks_is_read(site, stranger):
    """As Django's own reader of forms goes by the length: a page's form of several parts."""
    page = httpx.get(f"{site.url}/login/", timeout=PATIENCE)
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert token is not None
    person("ann")
    fields = {"csrfmiddlewaretoken": token[1], "username": "ann", "password": PASSWORD}
    request = httpx.Request("POST", f"{site.url}/login/", files={name: (None, text) for name, text in fields.items()})
    body = request.read()
    headers = {"Content-Type": request.headers["content-type"]}
    in_chunks = httpx.post(
        f"{site.url}/login/",
        content=iter([body[:50], body[50:]]),
        headers=headers,
        cookies=page.cookies,
        timeout=PATIENCE,
    )
    assert (in_chunks.status_code, in_chunks.headers.get("location")) == (302, "/")


def test_a_browser_is_shown_a_page(site):
    refused = httpx.post(f"{site.url}/login/", content=b"x" * 300_000, timeout=PATIENCE)
    assert (refused.status_code, refused.headers["content-type"]) == (413, "text/html; charset=utf-8")
    assert "<h1>Request refused</h1>" in refused.text
    assert "at most" in refused.text


def _written(site: Site) -> int:
    """Bytes on disk or in memory files of the server that nobody else sees."""
    total = 0
    for entry in Path(f"/proc/{site.process.pid}/fd").iterdir():
        try:
            if "(deleted)" in os.readlink(entry):
                total += entry.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_of_a_body_without_an_end_no_more_is_kept_than_may_be_sent(site, stranger):
    made = stranger("127.0.0.11").connect(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"

    def is_cut_off():
        with suppress(BlockingIOError):
            made.send(chunk)
        assert _written(site) == 0

    with pytest.raises((BrokenPipeError, ConnectionResetError)):  # it is read on for a moment, and then no more
        until(is_cut_off, every=0)
    assert httpx.get(f"{site.url}/healthz", timeout=PATIENCE).status_code == 200


@SLOW_COMERS
def test_a_body_that_comes_too_slowly_is_ended(site, stranger):
    began = time.monotonic()
    made = stranger("127.0.0.12").connect(HEAD + b"Content-Length: 100\r\n\r\n{")
    status, headers, body = answer_to(made)
    assert (status, headers["connection"], json.loads(body)["error"]["code"]) == (408, "close", "too_slow")
    assert time.monotonic() - began > 1.5


@SLOW_COMERS
def test_a_head_that_comes_byte_by_byte_is_ended(site, stranger):
    assert ended_after(stranger("127.0.0.13"), HEAD, b"X-A: b\r\n") > 1.5


@SLOW_COMERS
def test_bytes_after_an_answer_do_not_keep_a_connection(site, stranger):
    """A body that nobody waits for, of a file: it is answered before the body has come."""
    path = re.search(r'href="(/static/[^"]+\.css)"', httpx.get(f"{site.url}/login/", timeout=PATIENCE).text)
    assert path is not None
    head = f"GET {path[1]} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n".encode()
    assert ended_after(stranger("127.0.0.14"), head, b"x")


@pytest.mark.budget("http_connections_of_an_address")
def test_one_address_has_its_share_and_the_newest_of_its_connections_are_kept(site, stranger, key):
    many = stranger("127.0.0.140")
    halves = [many.connect(HEAD) for _ in range(EACH + 5)]
    until(lambda: sum(map(closed, halves)) >= 5)
    assert [closed(each) for each in halves] == [True] * 5 + [False] * EACH
    assert ask(site, key, "127.0.0.140").status_code == 200
    assert ask(site, key).status_code == 200


@pytest.mark.budget("http_connections_in_all")
def test_half_requests_from_everywhere_keep_nobody_out_and_fill_no_log(site, stranger, key):
    log = site.home / "server.log"
    before = log.stat().st_size
    for round_ in range(8):
        for number in range(20):
            each = stranger(f"127.0.{round_ + 1}.{number + 1}")
            for _ in range(EACH // 2):
                each.connect(HEAD)
        assert ask(site, key).status_code == 200, "whoever is signed in is answered all the same"
        assert len(list(Path(f"/proc/{site.process.pid}/fd").iterdir())) < ALL + 64
    assert log.stat().st_size - before < 10_000


def test_an_address_in_the_middle_of_answers_does_not_give_way(site, stranger, key):
    """A connection whose body is on its way is not the one to be closed."""
    many = stranger("127.0.0.160")
    busy = many.connect(HEAD + b"Content-Length: 40\r\nExpect: 100-continue\r\n\r\n")
    assert busy.recv(100).startswith(b"HTTP/1.1 100")  # its head was read before the others came
    halves = [many.connect(HEAD) for _ in range(EACH + 5)]
    until(lambda: sum(map(closed, halves)) >= 6)
    busy.sendall(json.dumps({"username": "ann", "password": "wrong"}).encode()[:40])
    assert busy.recv(20).startswith(b"HTTP/1.1 4")


def test_what_is_no_http_is_reported_in_sums(site, stranger):
    log = site.home / "server.log"
    many = stranger("127.0.0.17")
    before = log.stat().st_size
    for _ in range(50):
        assert answer_to(many.connect(b"\x16\x03\x01 hello\r\n\r\n"))[0] == 400
        assert (
            httpx.get(f"{site.url}/nowhere/", headers={"Host": "elsewhere.example"}, timeout=PATIENCE).status_code
            == 400
        )
    assert log.stat().st_size - before < 10_000


def test_who_hangs_up_follows_no_longer(site, stranger, key):
    container = make_container(person("ann"), "train")
    (site.home / "logs").mkdir(exist_ok=True)
    (site.home / "logs" / f"{container.pk}.log").write_text("first\n")
    head = f"GET /api/v1/containers/{container.pk}/logs/?follow=1 HTTP/1.1\r\nHost: localhost\r\n"
    ask_for_it = f"{head}Authorization: Token {key}\r\n\r\n".encode()

    def follow() -> tuple[bytes, socket.socket]:
        made = stranger("127.0.0.18").connect(ask_for_it)
        return made.recv(12), made

    (first, one), (second, _) = follow(), follow()
    assert first == second == b"HTTP/1.1 200"
    assert follow()[0] == b"HTTP/1.1 429"
    one.close()
    until(lambda: follow()[0] == b"HTTP/1.1 200")
