"""A web proxy as a lab has one: it leads outside, by CONNECT and for plain HTTP, and refuses this host itself."""

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.support.eventually import PATIENCE

INSIDE = ("localhost", "127.", "::1", "0.0.0.0")


class _Asked(socketserver.StreamRequestHandler):
    server: "Proxy"
    timeout = PATIENCE

    def handle(self) -> None:
        method, target, version = self.rfile.readline(65536).decode("latin-1").split()
        head = b""
        while (line := self.rfile.readline(65536)).strip():
            head += line
        url = urlsplit(target if "://" in target else f"//{target}")
        self.server.asked.append(url.hostname or "")
        if (url.hostname or "").startswith(INSIDE):
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 12\r\nConnection: close\r\n\r\nnot by proxy")
            return
        with socket.create_connection((url.hostname, url.port or 80), PATIENCE) as there:
            if method == "CONNECT":
                self.wfile.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                path = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
                there.sendall(f"{method} {path} {version}\r\n".encode() + head + b"Connection: close\r\n\r\n")
            self._pass_on(there)

    def _pass_on(self, there: socket.socket) -> None:
        ends = {self.connection: there, there: self.connection}
        while readable := select.select(list(ends), [], [], PATIENCE)[0]:
            for end in readable:
                data = end.recv(65536)
                if not data:
                    return
                ends[end].sendall(data)


class Proxy(socketserver.ThreadingTCPServer):
    """`url` is where it listens, and `asked` the names of the hosts that somebody wanted through it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """A connection that broke ends; who used it says so."""


@contextmanager
def a_proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join()


def environ_of(url: str) -> dict[str, str]:
    """What people set for it, without `no_proxy`."""
    return {name: url for each in ("http_proxy", "https_proxy") for name in (each, each.upper())}
