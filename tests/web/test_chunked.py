"""A request has the same effect whether its body comes in chunks or with a length."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
import uvicorn
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from django.utils import timezone

from appliance.running.doors import Doors, HttpProtocol
from appliance.threads import Handler
from tests.support.machine import make_container, make_gpu, make_node
from tests.support.people import make_user
from tests.support.site import PASSWORD
from web.http.gate import Gate
from web.models import AuditEntry, Command, Token
from web.people import tokens
from web.people.roles import Role
from web.services import steering

ROOT = Path(__file__).resolve().parents[2]
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # where nginx keeps what it cannot hold in memory
ONE = UUID(int=1)

# Of each method. All requests pass one gate (web/http/gate.py), which gives a body in chunks its length.
BODIES: dict[str, Mapping[str, Any]] = {
    "POST containers/": {"image": "local", "name": "new", "command": ["true"], "priority": 3},
    f"PATCH containers/{ONE}/": {"priority": 7},
    f"POST containers/{ONE}/kill/": {"grace": 10, "note": "why"},
    "PUT queue/": {"containers": [str(ONE)]},
    "POST people/": {"username": "eve", "role": "viewer", "password": PASSWORD},
    "POST sign-in/": {"username": "root", "password": PASSWORD, "scope": "read"},
}


@pytest.fixture
def key(db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An admin's, on a machine whose scheduler does what it is asked for."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    gpu = make_gpu(make_node(seen_at=timezone.now() + timedelta(hours=1)))
    admin = make_user("root", Role.ADMIN, password=PASSWORD)
    make_container(make_user("ada"), "a", gpu, pk=ONE)

    def done(command: Command) -> Command:
        Command.objects.filter(pk=command.pk).update(done_at=timezone.now(), outcome=Command.Outcome.DONE)
        command.refresh_from_db()
        return command

    monkeypatch.setattr(steering, "wait_for", done)
    for signal in (request_started, request_finished):  # would end this transaction, as Django's test client knows
        signal.disconnect(close_old_connections)
    yield tokens.make(admin)[1]
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


Answer = Callable[[str, str, bytes, str, bool], tuple[int, Any]]


def straight(method: str, path: str, body: bytes, key: str, chunked: bool) -> tuple[int, Any]:
    """Status and content of the answer to a request as it comes from the server, in two parts."""
    length = (b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"%d" % len(body))
    came = [(b"host", b"localhost"), (b"content-type", b"application/json"),
            (b"authorization", f"Token {key}".encode()), length]  # fmt: skip
    scope = {
        "type": "http", "method": method, "path": path, "query_string": b"", "headers": came,
        "scheme": "http", "client": ("192.0.2.1", 1), "server": ("localhost", 80), "http_version": "1.1",
    }  # fmt: skip
    parts = [body[:7], body[7:]]
    sent: list[Mapping[str, Any]] = []

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    async_to_sync(Gate(Handler()))(scope, receive, send)
    content = b"".join(part.get("body", b"") for part in sent[1:])
    return sent[0]["status"], json.loads(content or b"null")


def effect(operation: str, body: bytes, key: str, *, chunked: bool, answer: Answer = straight) -> str:
    """The answer and what it left in the database, without what is random; the database is as before."""
    method, _, path = operation.partition(" ")
    cache.clear()  # requests are counted in it
    with transaction.atomic():
        given = answer(method, f"/api/v1/{path}", body, key, chunked)
        left = [
            list(AuditEntry.objects.order_by("pk").values_list("actor", "action", "subject", "detail")),
            list(Command.objects.order_by("created_at").values_list("kind", "arguments", "note")),
            [(each.scope, each.expires_at is None) for each in Token.objects.order_by("pk")],
            list(User.objects.order_by("pk").values_list("username", "is_active", "groups__name")),
        ]
        transaction.set_rollback(True)
    shown = json.dumps([given, left], default=str)
    made = r"[0-9a-f]{8}-[0-9a-f-]{27}|20\d\d-[0-9T:.+ -]{8,}Z?|[\w-]{24,}"
    return re.sub(rf"{made}", lambda found: found[0] if found[0] == str(ONE) else "…", shown)


@pytest.mark.parametrize("operation", BODIES)
def test_a_body_in_chunks_has_the_effect_of_one_with_a_length(operation: str, key: str) -> None:
    body = json.dumps(BODIES[operation]).encode()
    whole = effect(operation, body, key, chunked=False)
    empty = effect(operation, b"{}", key, chunked=False)
    assert whole != empty, "whether the body was read cannot be seen"
    assert effect(operation, body, key, chunked=True) == whole


@pytest.fixture(scope="module", params=["as documented", "unbuffered"])
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answer]:
    """Answers through a real nginx and the real server. Unbuffered, nginx passes chunks on as it gets them."""
    home = tmp_path_factory.mktemp("nginx")
    example = (ROOT / "docs" / "production.md").read_text().partition("```nginx\n")[2].partition("```")[0]
    changed = re.search(r"# (map .*)", example)
    assert changed is not None
    if request.param == "unbuffered":
        example = example.replace("proxy_buffering off;", "proxy_buffering off; proxy_request_buffering off;")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        example = example.replace("127.0.0.1:8000", f"127.0.0.1:{listener.getsockname()[1]}")
        paths = "".join(f"{kind}_temp_path {home}; " for kind in PATHS)
        (home / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {home}/pid; error_log {home}/error.log; events {{}}\n"
            f"http {{ access_log off; {paths}\n{changed[1]}\nserver {{ listen unix:{home}/socket;\n{example} }} }}\n"
        )
        process = subprocess.Popen([NGINX, "-p", home, "-c", home / "nginx.conf", "-e", home / "error.log"])
        try:
            wait_for_server(process, home / "socket")
            yield partial(through, home / "socket", listener)
        finally:
            process.terminate()
            process.wait()


def wait_for_server(process: subprocess.Popen[bytes], path: Path) -> None:
    while process.poll() is None:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            return
    pytest.fail("nginx did not start")


def through(
    proxy: Path, listener: socket.socket, method: str, path: str, body: bytes, key: str, chunked: bool
) -> tuple[int, Any]:
    async def parts() -> AsyncIterator[bytes]:
        for part in (body[:7], body[7:]):
            yield part

    async def ask() -> tuple[int, Any]:
        HttpProtocol.doors = Doors([])
        config = uvicorn.Config(
            Gate(Handler()), http=HttpProtocol, lifespan="off", log_config=None, proxy_headers=False
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener.dup()]))
        try:
            transport = httpx.AsyncHTTPTransport(uds=str(proxy))
            async with httpx.AsyncClient(transport=transport, timeout=60) as client:
                headers = {"Authorization": f"Token {key}", "Content-Type": "application/json"}
                content = parts() if chunked else body
                answer = await client.request(method, f"http://localhost{path}", content=content, headers=headers)
                return answer.status_code, json.loads(answer.content or b"null")
        finally:
            server.should_exit = True
            await serving

    return async_to_sync(ask)()


@pytest.mark.skipif(NGINX is None, reason="needs nginx")
@pytest.mark.parametrize("operation", BODIES)
def test_so_has_one_through_nginx(operation: str, key: str, proxied: Answer) -> None:
    body = json.dumps(BODIES[operation]).encode()
    whole = effect(operation, body, key, chunked=False)
    for chunked in (False, True):
        assert effect(operation, body, key, chunked=chunked, answer=proxied) == whole
