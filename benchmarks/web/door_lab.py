"""A container with an application, the door to it, and those who come in (benchmarks/web/door.py)."""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.bystander import begun
from benchmarks.live import GIB, Live
from scheduler import proc
from tests.support import inside
from tests.support.card import ROOT

PEOPLE = 5  # who have a browser each: one may have 256 connections
APPS = "lab-apps.example"
DOOR = {
    "GPUSHARE_TLS": "1", "GPUSHARE_PUBLIC_URL": "https://gpu1.lab.example", "GPUSHARE_APPS": f"*.{APPS}",
    "GPUSHARE_APPS_LISTEN": "127.0.0.1:0", "GPUSHARE_SSH": "127.0.0.1:0",
}  # fmt: skip
APPLICATION = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
UPGRADED = b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n"
class Answers(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.upgraded = transport, False
    def data_received(self, data):
        if self.upgraded:
            return self.transport.write(data)
        self.upgraded = b"pgrade: websocket" in data
        self.transport.write(UPGRADED if self.upgraded else b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
async def main():
    await (await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", int(sys.argv[1]))).serve_forever()
asyncio.run(main())
"""


class Process:
    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def seconds(self) -> float:
        """Of a processor."""
        return proc.processor_time(self.pid)

    def memory(self, what: str = "VmRSS") -> float:
        """MiB; nothing of one that has ended."""
        with suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith(f"{what}:"):
                    return int(line.split()[1]) / 1024
        return 0

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


class Lab:
    """The container, the door to it, and the browsers (cookies) that are let in."""

    def __init__(self, home: Path, container: Any, port: int, door: Process, ports: Sequence[int]) -> None:
        self.home, self.container, self.port, self.door = home, container, port, door
        self.ssh, self.http = ports
        self.options = self._keys()
        self.cookies = [self._cookie(f"browser-{n}") for n in range(PEOPLE)]

    def _keys(self) -> list[str]:
        from web.people import ssh_keys

        key = self.home / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        ssh_keys.add(self.container.owner, {"key": key.with_suffix(".pub").read_text()})
        (self.home / "known").write_text(f"[127.0.0.1]:{self.ssh} {ssh_keys.host_key_line()}\n")
        said = {"IdentityFile": key, "UserKnownHostsFile": self.home / "known", "IdentitiesOnly": "yes",
                "BatchMode": "yes", "LogLevel": "ERROR", "Port": self.ssh, "User": self.container.name}  # fmt: skip
        return ["-F", "none", *(f"-o{name}={value}" for name, value in said.items())]

    def _cookie(self, name: str) -> str:
        from django.contrib.auth.models import User
        from django.test import Client
        from django.utils import timezone

        from appliance.running.apps import COOKIE
        from web.models import AppGuest, AppSession
        from web.people.tokens import digest

        user, browser, key = User.objects.create_user(name), Client(), secrets.token_urlsafe(32)
        browser.force_login(user)
        AppGuest.objects.create(container=self.container, user=user)
        session = browser.session.session_key or ""
        AppSession.objects.create(user=user, container=self.container, port=self.port, session=session,
                                  digest=digest(key), expires_at=timezone.now() + timedelta(days=1))  # fmt: skip
        return f"{COOKIE}={key}"

    def asks(self, browser: int = 0, *headers: str) -> bytes:
        from appliance.heads import label

        host = f"{label(self.container.name, str(self.container.pk))}-{self.port}.{APPS}"
        lines = ["GET / HTTP/1.1", f"Host: {host}", f"Cookie: {self.cookies[browser]}", *headers]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def enter(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.http))

    def run(self, *words: str, **streams: Any) -> float:
        """Seconds until this program of OpenSSH's, or rsync, has ended."""
        begun = time.perf_counter()
        subprocess.run(words, check=True, cwd=self.home, **streams)
        return time.perf_counter() - begun

    @contextmanager
    def costs(self) -> Iterator[Callable[[], float]]:
        """Seconds of a processor that the door has taken since."""
        before = self.door.seconds
        yield lambda: self.door.seconds - before


def answered(connection: socket.socket, asking: bytes) -> float:
    """Seconds until the first byte."""
    begun = time.perf_counter()
    connection.sendall(asking)
    head = connection.recv(1 << 16)
    took = time.perf_counter() - begun
    while not head.endswith((b"\r\n\r\nok", b"websocket\r\n\r\n")):
        more = connection.recv(1 << 16)
        assert more, head
        head += more
    return took


@contextmanager
def first() -> Iterator[None]:
    """What is started in here comes before all else, where the kernel allows it."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def opened(live: Live, address: str) -> Iterator[Lab]:
    """`address`: Docker's; empty for local processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fields: dict[str, Any] = {"volumes": [], "environment": {}}
    words = [sys.executable, "-c", APPLICATION, str(port)]
    environment: dict[str, str] = {}
    if address:
        inside.build(address)
        words, fields = inside.words(APPLICATION, str(port)), inside.FIELDS
        environment = {"GPUSHARE_DOCKER_HOST": address, "GPUSHARE_VOLUME_ROOTS": " ".join(inside.ROOTS)}
    with ExitStack() as stack:
        with first():
            stack.enter_context(live.scheduler("fair", None, **environment))
        (container,) = begun([live.launch("lab", words, gpu_memory=GIB, app=str(port), **fields)])
        with subprocess.Popen([sys.executable, str(ROOT / "manage.py"), "rundoor"], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, **DOOR, "GPUSHARE_LOG": "ERROR"}) as door:  # fmt: skip
            try:
                assert door.stdout
                ports = [int(door.stdout.readline().rpartition(":")[2]) for _ in range(2)]
                yield Lab(live.home, container, port, Process(door.pid), ports)
            finally:
                door.terminate()
