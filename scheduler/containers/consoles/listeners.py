"""What listens in a network namespace, and which process of a container holds it.

By sock_diag(7), as `ss` does. For /proc/net/tcp the kernel looks through its table of all connections of the host: that
takes 10 ms, this 0.1.
"""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from itertools import islice
from typing import NamedTuple

from scheduler import proc

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
DONE, ONE, DUMP = 3, 0x1, 0x301  # NLMSG_DONE; NLM_F_REQUEST; and with NLM_F_DUMP
LISTENS = 1 << 10  # TCP_LISTEN
ANSWER = 64 << 10  # bytes at once, at most; the kernel sends 32 KiB
KNOWN = 4096
MOST = 4096  # that are looked at: a container may open more than a million, each of which costs the loop that decides
_HEAD = struct.Struct("=IHHII")  # nlmsghdr: length, kind, flags, sequence, port
_ASKED = struct.Struct("=BBBxI48s")  # inet_diag_req_v2: family, protocol, extensions, states, socket
_SOCKET = struct.Struct("=2s2x16s20x8s")  # inet_diag_sockid: port, address, cookie
_LOOPBACK = {socket.AF_INET: IPv4Address("127.0.0.1").packed, socket.AF_INET6: IPv6Address("::1").packed}
_FOUND = struct.Struct("=BBxx2s2x16s44xI")  # inet_diag_msg: family, state, port, address, inode

Owns = Callable[[int], bool]
"""Whether the process with this host pid runs inside the container."""

_holders: dict[int, tuple[int, str]] = {}  # inode of a listener → process and descriptor that last held it


class Listener(NamedTuple):
    """A listening TCP socket. `inode` names it for good."""

    address: IPv4Address | IPv6Address
    port: int
    inode: int

    @property
    def reached_at(self) -> str:
        if not self.address.is_unspecified:
            return str(self.address)
        return "127.0.0.1" if self.address.version == 4 else "::1"

    def is_still_held(self, owns: Owns) -> bool:
        """By what held it when `held` last looked for that."""
        pid, descriptor = _holders.get(self.inode, (0, ""))
        with suppress(OSError):
            return pid > 0 and owns(pid) and proc.link(pid, f"fd/{descriptor}") == _link(self.inode)
        return False


def listeners() -> list[Listener]:
    """In the network namespace of this thread; MOST of them. Raises OSError."""
    with _diagnosis() as kernel:
        found = (each for family in _LOOPBACK for each in _ask(kernel, family, DUMP, b""))
        return list(islice(found, MOST))


def near(port: int) -> list[Listener]:
    """Whoever takes connections to this port of 127.0.0.1 and ::1 there, however many others listen. Raises OSError."""
    found = []
    with _diagnosis() as kernel:
        for family, address in _LOOPBACK.items():
            with suppress(FileNotFoundError):
                found.append(next(_ask(kernel, family, ONE, _SOCKET.pack(port.to_bytes(2), address, b"\xff" * 8))))
    return found


def _diagnosis() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG)


def _ask(kernel: socket.socket, family: int, flags: int, which: bytes) -> Iterator[Listener]:
    """Raises OSError; of one that is not there FileNotFoundError."""
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, LISTENS, which)
    kernel.send(_HEAD.pack(_HEAD.size + len(asked), SOCK_DIAG_BY_FAMILY, flags, 0, 0) + asked)
    for message in _answers(kernel):
        its, _, port, address, inode = _FOUND.unpack_from(message)
        yield Listener(_address(its, address), int.from_bytes(port), inode)


def _answers(kernel: socket.socket) -> Iterator[bytes]:
    """Raises OSError."""
    while True:
        data = kernel.recv(ANSWER)
        while data:
            length, kind, *_ = _HEAD.unpack_from(data)
            if kind == DONE:
                return
            if kind != SOCK_DIAG_BY_FAMILY:
                (error,) = struct.unpack_from("=i", data, _HEAD.size)
                raise OSError(-error, f"{os.strerror(-error)} (the kernel's tcp_diag)")
            yield data[_HEAD.size : length]
            data = data[(length + 3) & ~3 :]


def _address(family: int, packed: bytes) -> IPv4Address | IPv6Address:
    if family == socket.AF_INET:
        return IPv4Address(packed[:4])
    address = IPv6Address(packed)
    return address.ipv4_mapped or address


def held(found: list[Listener], owns: Owns) -> list[Listener]:
    """Those of them that a process of the container holds. Looks through all processes of the host."""
    wanted = {_link(each.inode): each for each in found}
    theirs: dict[int, tuple[int, str]] = {}
    for pid in filter(owns, proc.pids()):
        open_ = proc.descriptors(pid)
        theirs.update((wanted[link].inode, (pid, open_[link])) for link in open_.keys() & wanted.keys())
    if len(_holders) > KNOWN:
        _holders.clear()
    _holders.update(theirs)
    return [each for each in found if each.inode in theirs]


def _link(inode: int) -> str:
    """What /proc/PID/fd says of it."""
    return f"socket:[{inode}]"
