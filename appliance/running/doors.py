"""The web server's connections: counted, timed, and let in only while there is room for them.

uvicorn limits how long a finished request may keep its connection, and how large a head may be. It does not limit how
long a head may take, nor how many connections one address has; beyond its limit in all it refuses whoever is next, so
that those who came first and say nothing keep everybody out. Here whoever comes next is let in, and the connection
that has waited longest without a whole request gives way: of the same address if that has too many, else of all. Who
is being answered never gives way. So many connections at most leave descriptors for the database and everything else.
"""

import asyncio
import ipaddress
import logging
import resource
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from web.budgets import address_key, budget

log = logging.getLogger(__name__)

HEADER_SECONDS = 10  # a head is one packet or two, also over a slow line
RESERVED_DESCRIPTORS = 512  # for the database and what is open already; of few, a quarter
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 5\r\n"
    b"content-length: 64\r\nconnection: close\r\n\r\nToo many connections are open here. Try again in a few seconds.\n"
)


class Connection(Protocol):
    address: str

    def abort(self) -> None:
        """It gives way to another one."""


class Networks:
    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def __contains__(self, host: str) -> bool:
        try:
            found = ipaddress.ip_address(host)
        except ValueError:  # a UNIX socket's
            return False
        return any(found in network for network in self._networks)


class Doors:
    """All connections of this process. `trusted` are the networks of proxies: those carry many people's requests.
    `descriptors`: what each takes."""

    def __init__(self, trusted: Iterable[str], descriptors: int = 1) -> None:
        self._trusted = Networks(trusted)
        self._waiting: dict[Connection, None] = {}  # for a whole head; the longest first
        self._of_address: Counter[str] = Counter()
        self._all = 0
        self._room = min(budget("http_connections_in_all"), _descriptors_to_spare() // descriptors)

    def enter(self, address: str, host: str) -> bool:
        """`host` is one of the `address`, which may be a network. False if there is no room."""
        each = self._room if host in self._trusted else budget("http_connections_of_an_address")
        if self._of_address[address] >= each:
            gone = self._give_way(address)
        elif self._all >= self._room:
            gone = self._give_way(None)
        else:
            gone = True
        if gone:
            self._all += 1
            self._of_address[address] += 1
        return gone

    def leave(self, address: str) -> None:
        self._all -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def waits(self, connection: Connection) -> None:
        self._waiting[connection] = None

    def is_answered(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def _give_way(self, address: str | None) -> bool:
        oldest = next((each for each in self._waiting if address in (None, each.address)), None)
        if oldest is None:
            log.warning("a connection was refused: the limit of open connections is reached")
            return False
        log.info("a connection was closed for a newer one: it had waited longest without a complete request")
        oldest.abort()
        return True


class HttpProtocol(H11Protocol):
    """One connection. `doors` is whatever all of them go through."""

    doors: Doors
    address = ""
    _entered = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        self.address = address_key(host)
        self._entered = self.doors.enter(self.address, host)
        if self._entered:
            self._wait_for_head()
        else:
            transport.write(FULL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._entered:
            return
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            return  # it is a WebSocket now, and was handed over
        if not self._idle():
            self._head_is_here()
        elif self._deadline is None:
            self._wait_for_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._entered and self._idle():
            self.doors.waits(self)  # uvicorn has its own seconds for the next request to begin

    def _idle(self) -> bool:
        """No request is being answered. What still comes of a body that nobody wanted makes no difference."""
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)
        self.let_go()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._head_is_here()
        super().handle_websocket_upgrade(event)

    def let_go(self) -> None:
        if self._entered:
            self._entered = False
            self.doors.leave(self.address)

    def abort(self) -> None:
        """Its place is free at once; the rest follows."""
        self._head_is_here()
        self.let_go()
        self.transport.abort()

    def _wait_for_head(self) -> None:
        self.doors.waits(self)
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._too_late)

    def _head_is_here(self) -> None:
        self.doors.is_answered(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        log.info("a connection was closed: no complete request came within %s seconds", HEADER_SECONDS)
        self.abort()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Leaves as the connection that it was entered as."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._entered_as: Any = transport.get_protocol()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._entered_as.let_go()


def _descriptors_to_spare() -> int:
    """For connections, of all that this process can be given. A thread of a request takes four, database and all."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kept = RESERVED_DESCRIPTORS + 4 * budget("requests_at_once_in_all")
    return most - min(kept, most * 3 // 4)
