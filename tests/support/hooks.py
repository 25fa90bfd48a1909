"""A receiver of webhooks: a real HTTP server that takes, refuses, is slow, says nothing or is not there, as asked."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.ports import free_port

TAKES = 200


@dataclass
class Heard:
    headers: dict[str, str]
    body: bytes
    answer: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["Idempotency-Key"]


@dataclass
class Hook:
    """`answer` is the status; `delay` the seconds before it; `location` where a redirect leads."""

    port: int = 0
    answer: int = TAKES
    delay: float = 0.0
    location: str = ""
    text: bytes = b""
    heard: list[Heard] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None
    ending: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def taken(self) -> list[Heard]:
        return [each for each in self.heard if 200 <= each.answer < 300]

    @property
    def statuses(self) -> list[tuple[str, str]]:
        """Status and kind of each message that was taken, in their order."""
        return [(it.json["status"], it.json["commonLabels"].get("kind", "test")) for it in self.taken]

    def up(self) -> None:
        if self._server is None:
            self.port = self.port or free_port()  # of those that nobody is given while it is down
            self._server = _Server(("127.0.0.1", self.port), _handler(self))
            threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def down(self) -> None:
        """Nobody listens on its port any more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False


def _handler(hook: Hook) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = hook.answer
            hook.heard.append(Heard(dict(self.headers), body, answer))
            hook.ending.wait(hook.delay)
            self.send_response(answer)
            if hook.location:
                self.send_header("Location", hook.location)
            self.send_header("Content-Length", str(len(hook.text)))
            self.end_headers()
            self.wfile.write(hook.text)

        def log_message(self, *_: Any) -> None:
            pass

        def handle(self) -> None:
            with suppress(OSError):  # who asked has hung up
                super().handle()

    return Handler


@contextmanager
def listening(**fields: Any) -> Iterator[Hook]:
    hook = Hook(**fields)
    hook.up()
    try:
        yield hook
    finally:
        hook.ending.set()
        hook.down()


@contextmanager
def dripping(every: float) -> Iterator[str]:
    """The address of one who answers a byte now and then, and never to the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        while not stop.is_set():
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                for letter in b"HTTP/1.1 200 " + b"O" * 10_000:
                    if stop.wait(every):
                        return
                    try:
                        line.send(bytes([letter]))
                    except OSError:
                        break

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        stop.set()
        listener.close()


def moments(start: Any, length: Any, every: Any) -> Iterator[Any]:
    """A clock that a test turns: from `start` through `length`, both ends."""
    at = start
    while at <= start + length:
        yield at
        at += every
