"""A connection to a port in a container, made inside its network namespace and handed out as a descriptor.

So an application is reached that listens on the container's own 127.0.0.1, also where the container has no network, and
no byte of the connection passes the scheduler. In the host's own network namespace (local processes, `network: host`)
only what a process of the container itself listens to is reached: every other port there belongs to somebody else.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import NamedTuple

from scheduler import proc
from web.errors import Problem

CLONE_NEWNET = 0x40000000
LISTENS = "0A"  # TCP_LISTEN, as /proc/net/tcp has it
CONNECTS_WITHIN = 3.0  # seconds; it is the same host
SHOWN = 8  # ports named in an error
ENDED = Problem("container_ended", "The container has ended.", 409)
_libc = ctypes.CDLL(None, use_errno=True)

Owns = Callable[[int], bool]
"""Whether the process with this host pid runs inside the container."""


class Listener(NamedTuple):
    """A listening TCP socket. `inode` names it for good."""

    address: IPv4Address | IPv6Address
    port: int
    inode: str

    @property
    def reached_at(self) -> str:
        if not self.address.is_unspecified:
            return str(self.address)
        return "127.0.0.1" if self.address.version == 4 else "::1"


def connect(pid: int, port: int, owns: Owns) -> socket.socket:
    """Blocking. A connection to what listens on this port beside the process with this pid; port 0: on its only one.

    Raises Problem.
    """
    try:
        namespace = proc.open_namespace(pid, "net")
    except OSError:
        raise ENDED from None
    try:
        if not owns(pid):
            raise ENDED
        if os.fstat(namespace).st_ino == os.stat("/proc/self/ns/net").st_ino:
            its = _sockets(owns)
            return _to(port, lambda found: found.inode in its)
        return _within(namespace, lambda: _to(port, lambda found: True))
    except OSError as error:
        raise Problem(
            "not_reached", f"Port {port} in the container cannot be reached: {error.strerror}.", 409
        ) from None
    finally:
        os.close(namespace)


def _within(namespace: int, work: Callable[[], socket.socket]) -> socket.socket:
    """In a thread that ends with it: a thread that has entered a namespace is of no other use."""
    done: Future[socket.socket] = Future()

    def enter() -> None:
        try:
            if _libc.setns(namespace, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=enter, name="network namespace").start()
    return done.result()


def _to(port: int, is_its: Callable[[Listener], bool]) -> socket.socket:
    """Raises Problem, OSError."""
    listeners = list(_listeners())
    for found in listeners:
        if port in (found.port, 0) and is_its(found):
            if port == 0 and (others := {each.port for each in listeners if is_its(each)} - {found.port}):
                raise _which(sorted(others | {found.port}))
            connection = socket.create_connection((found.reached_at, found.port), CONNECTS_WITHIN)
            if found in _listeners():  # else somebody else may have taken its place before we came
                return connection
            connection.close()
    raise _nothing(port, sorted({each.port for each in listeners if is_its(each)}))


def _listeners() -> Iterator[Listener]:
    """In the network namespace of this thread. Raises OSError."""
    for table in ("tcp", "tcp6"):
        path = Path("/proc/thread-self/net", table)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            _, local, _, state, *rest = line.split()
            if state == LISTENS:
                address, port = local.split(":")
                yield Listener(_address(address), int(port, 16), rest[5])


def _address(text: str) -> IPv4Address | IPv6Address:
    """As the kernel prints it: words of four bytes, each in the processor's order."""
    packed = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    if len(packed) == 4:
        return IPv4Address(packed)
    address = IPv6Address(packed)
    return address.ipv4_mapped or address


def _sockets(owns: Owns) -> set[str]:
    """The inodes of all that the container's processes have. Looked for once: a host may have hundreds of listeners."""
    pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
    found = {link for pid in pids if owns(pid) for link in proc.descriptors(pid)}
    return {link.removeprefix("socket:[").removesuffix("]") for link in found if link.startswith("socket:[")}


def _which(ports: list[int]) -> Problem:
    return Problem("which_port", f"Several ports listen in the container: {_named(ports)}. Name one.", 409)


def _nothing(port: int, others: list[int]) -> Problem:
    what = f"on port {port}" if port else "in the container"
    also = f" Listening: {_named(others)}." if others else ""
    return Problem("nothing_listens", f"Nothing listens {what} yet.{also}", 409)


def _named(ports: list[int]) -> str:
    return ", ".join(map(str, ports[:SHOWN])) + (", …" if len(ports) > SHOWN else "")
