"""A connection to a port in a container, made inside its network namespace and handed out as a descriptor.

So an application is reached that listens on the container's own 127.0.0.1, also where the container has no network, and
no byte of the connection passes the scheduler. In the host's own network namespace (local processes, `network: host`)
only what a process of the container itself listens to is reached: every other port there belongs to somebody else.
"""

import asyncio
import ctypes
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

from scheduler import proc
from scheduler.containers.consoles.listeners import Listener, Owns, held, listeners, near
from web.errors import Problem

CLONE_NEWNET = 0x40000000
CONNECTS_WITHIN = 3.0  # seconds; it is the same host
SHOWN = 8  # ports named in an error
ENDED = Problem("container_ended", "The container has ended.", 409)
# Threads that enter namespaces do nothing else: one that could not come back would speak to strangers.
_entering = ThreadPoolExecutor(2, "network-namespace")
_libc = ctypes.CDLL(None, use_errno=True)

Made = TypeVar("Made")


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
    loop = asyncio.get_running_loop()
    connection, found, is_host = await loop.run_in_executor(_entering, _begin, pid, port, owns)
    try:
        async with asyncio.timeout(CONNECTS_WITHIN):
            await loop.sock_connect(connection, (found.reached_at, found.port))
        if is_host and found not in near(found.port) and found not in listeners():
            raise _nothing(port, [])  # somebody else may have taken its place before we came
        connection.setblocking(True)
        return connection
    except TimeoutError:
        connection.close()
        raise Problem("not_reached", f"Port {found.port} in the container accepts no connection now.", 409) from None
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
        is_host = os.fstat(namespace).st_ino == os.stat("/proc/self/ns/net").st_ino
        its = partial(_held_by, owns) if is_host else _all_of
        return Begun(*_within(namespace, lambda: _to(port, its(port))), is_host)
    except OSError as error:
        raise _not_reached(port, error) from None
    finally:
        os.close(namespace)


def _not_reached(port: int, error: OSError) -> Problem:
    return Problem("not_reached", f"Port {port} in the container cannot be reached: {error.strerror}.", 409)


def _within(namespace: int, work: Callable[[], Made]) -> Made:
    """Raises OSError."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(namespace)
        return work()
    finally:
        _enter(own)
        os.close(own)


def _enter(namespace: int) -> None:
    """Raises OSError. Who is in there needs no right to enter it."""
    is_in = os.fstat(namespace).st_ino == os.stat("/proc/thread-self/ns/net").st_ino
    if not is_in and _libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _held_by(owns: Owns, port: int) -> list[Listener]:
    """In the host's own namespace. Raises OSError."""
    its = near(port)
    return [each for each in its if each.is_still_held(owns)] or held([*its, *listeners()], owns)


def _all_of(port: int) -> list[Listener]:
    return near(port) or listeners()


def _to(port: int, its: list[Listener]) -> tuple[socket.socket, Listener]:
    """Its connection has begun. `its`: of the container. Raises Problem, OSError."""
    ports = sorted({each.port for each in its})
    if port == 0 and len(ports) > 1:
        raise _which(ports)
    found = next((each for each in its if port in (each.port, 0)), None)
    if found is None:
        raise _nothing(port, ports)
    family = socket.AF_INET6 if ":" in found.reached_at else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    connection.connect_ex((found.reached_at, found.port))  # it is connected then, unless its queue is full
    return connection, found


def _which(ports: list[int]) -> Problem:
    return Problem("which_port", f"Several ports listen in the container: {_named(ports)}. Name one.", 409)


def _nothing(port: int, others: list[int]) -> Problem:
    what = f"on port {port}" if port else "in the container"
    also = f" Listening: {_named(others)}." if others else ""
    return Problem("nothing_listens", f"Nothing listens {what} yet.{also}", 409)


def _named(ports: list[int]) -> str:
    return ", ".join(map(str, ports[:SHOWN])) + (", …" if len(ports) > SHOWN else "")
