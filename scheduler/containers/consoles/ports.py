"""A connection to a port in a container, made inside its network namespace and handed out as a descriptor.

So an application is reached that listens on the container's own 127.0.0.1, also where the container has no network, and
no byte of the connection passes the scheduler. In the host's own network namespace (local processes, `network: host`)
only what a process of the container itself listens to is reached: every other port there belongs to somebody else.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import NamedTuple, TypeVar

from scheduler import proc
from web.errors import Problem

CLONE_NEWNET = 0x40000000
LISTENS = "0A"  # TCP_LISTEN, as /proc/net/tcp has it
CONNECTS_WITHIN = 3.0  # seconds; it is the same host
SHOWN = 8  # ports named in an error
ENDED = Problem("container_ended", "The container has ended.", 409)
_libc = ctypes.CDLL(None, use_errno=True)

Made = TypeVar("Made")
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


class Begun(NamedTuple):
    """A socket in the container's network namespace, and the listener that it is to be connected to. `is_host`: that
    namespace is the host's own."""

    connection: socket.socket
    found: Listener
    is_host: bool


async def connect(pid: int, port: int, owns: Owns) -> socket.socket:
    """A connection to what listens on this port beside the process with this pid; port 0: on its only one.

    No thread waits for the container: one that listens and takes no connection would hold up everybody else's threads.
    Raises Problem.
    """
    begun = await asyncio.to_thread(_begin, pid, port, owns)
    connection, found, is_host = begun
    try:
        async with asyncio.timeout(CONNECTS_WITHIN):
            await asyncio.get_running_loop().sock_connect(connection, (found.reached_at, found.port))
        if is_host and not await asyncio.to_thread(lambda: found in _listeners()):
            raise _nothing(port, [])  # somebody else may have taken its place before we came
        connection.setblocking(True)
        return connection
    except TimeoutError:
        connection.close()
        raise Problem("not_reached", f"Port {found.port} in the container takes no connection now.", 409) from None
    except OSError as error:
        connection.close()
        raise _not_reached(port, error) from None
    except BaseException:
        connection.close()
        raise


def _begin(pid: int, port: int, owns: Owns) -> Begun:
    """Raises Problem."""
    try:
        namespace = proc.open_namespace(pid, "net")
    except OSError:
        raise ENDED from None
    try:
        if not owns(pid):
            raise ENDED
        if os.fstat(namespace).st_ino == os.stat("/proc/self/ns/net").st_ino:
            its = _sockets(owns)
            return Begun(*_to(port, lambda found: found.inode in its), True)
        return Begun(*_within(namespace, lambda: _to(port, lambda found: True)), False)
    except OSError as error:
        raise _not_reached(port, error) from None
    finally:
        os.close(namespace)


def _not_reached(port: int, error: OSError) -> Problem:
    return Problem("not_reached", f"Port {port} in the container cannot be reached: {error.strerror}.", 409)


def _within(namespace: int, work: Callable[[], Made]) -> Made:
    """In a thread that ends with it: a thread that has entered a namespace is of no other use."""
    done: Future[Made] = Future()

    def enter() -> None:
        try:
            if _libc.setns(namespace, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=enter, name="network namespace").start()
    return done.result()


def _to(port: int, is_its: Callable[[Listener], bool]) -> tuple[socket.socket, Listener]:
    """Not connected yet. Raises Problem, OSError."""
    listeners = list(_listeners())
    for found in listeners:
        if port in (found.port, 0) and is_its(found):
            if port == 0 and (others := {each.port for each in listeners if is_its(each)} - {found.port}):
                raise _which(sorted(others | {found.port}))
            family = socket.AF_INET6 if ":" in found.reached_at else socket.AF_INET
            return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK), found
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
