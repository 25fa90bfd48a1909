"""One connected process: what it says, a message at a time, and what it is sent.

Nothing is received from a connection but when it is its container's turn (fair_queue.py), and nothing that it passes is
looked at or closed here (closer.py). One connection's bad manners close that connection and nothing else.
"""

import asyncio
import socket
import struct
from collections import deque
from typing import Protocol

from scheduler.proc import Peer
from scheduler.sessions.closer import Closer
from scheduler.sessions.fair_queue import FairQueue
from scheduler.sessions.wire import FRAME_SIZE, Frame, Reader, Type, WireError, pack
from shim.binding import EXHAUSTED

READ_SIZE = 64 * FRAME_SIZE
UNSENT_LIMIT = 64  # frames beyond the hundreds that the kernel keeps; a process that reads nothing is broken
MOST_PASSED = 253  # descriptors with one message (SCM_MAX_FD of Linux); what there is no room for, the kernel closes


class Handler(Protocol):
    """What is sent. Every call is synchronous: a message is dealt with before the next is read."""

    def hello(self, connection: "Connection", frame: Frame) -> None:
        """The first message."""

    def message(self, connection: "Connection", frame: Frame) -> None: ...

    def closed(self, connection: "Connection") -> None:
        """The connection has ended."""


class House(Protocol):
    """What all connections share (server.py)."""

    handler: Handler
    refuses_descriptors: bool  # the kernel passes none
    fair_queue: FairQueue
    closer: Closer

    def room(self, taken: int) -> int: ...

    def complain(self, container: str, text: str, error: Exception | None = None) -> None: ...

    def forget(self, connection: "Connection", sock: socket.socket) -> None: ...


class Connection:
    """`hold()` keeps its messages unread until `go_on()`.

    Where it is: the fair_queue has it (`_queued`), or it is held, or the loop tells when there is something to
    read (`_listening`).
    """

    def __init__(self, house: House, container: str, sock: socket.socket, peer: Peer, patience: float) -> None:
        self.container, self.peer = container, peer
        self.open = True
        self.greeted = False
        self._house = house
        self._socket = sock
        self._fd = sock.fileno()  # the loop wants a number: of a socket it makes the name first, which asks the kernel
        self._reader = Reader()
        self._frames: deque[Frame] = deque()
        self._queued = self._held = self._listening = False
        self._unsent: deque[Frame] = deque()
        self._cut = 0  # how much of the first unsent frame has gone
        self._loop = asyncio.get_running_loop()
        self._impatience = self._loop.call_later(patience, self.close, "it did not say HELLO")
        self._listen()

    # ---- what it says ----

    def _listen(self) -> None:
        self._listening = True
        self._loop.add_reader(self._fd, self._readable)

    def _be_deaf(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._fd)

    def _readable(self) -> None:
        if self._house.fair_queue.at_once(self.container, self._hear):
            self._be_deaf()
            self._queue()

    def _queue(self) -> None:
        self._queued = True
        self._house.fair_queue.add(self.container, self._take_turn)

    def _take_turn(self) -> bool:
        self._queued = self.open and not self._held and self._hear()
        if not self._queued and self.open and not self._held:
            self._listen()
        return self._queued

    def _hear(self) -> bool:
        """Deals with one message, if there is one; whether there are more."""
        try:
            if not self._frames:
                self._receive()
            if self._frames:
                self._deal(self._frames.popleft())
        except BlockingIOError:
            pass
        except ConnectionError:
            self.close()
        except WireError as error:
            self.close(str(error))
        except Exception as error:
            self._failed(error)
        return bool(self._frames) and self.open and not self._held

    def _failed(self, error: Exception) -> None:
        """The process connects again, and again; so what is reported of it is bounded."""
        short = isinstance(error, OSError) and error.errno in EXHAUSTED
        self._house.complain(self.container, f"process {self.peer.pid}: {error!r}", None if short else error)
        self.close()

    def _receive(self) -> None:
        if self._house.refuses_descriptors:
            data = self._socket.recv(READ_SIZE, socket.MSG_DONTWAIT)
        else:
            data = self._receive_descriptors()
        if data:
            self._frames.extend(self._reader.feed(data))
        else:
            self.close()

    def _receive_descriptors(self) -> bytes:
        """Also what it passes with its message, as the kernel cannot be asked to refuse that."""
        data, ancillary, _, _ = self._socket.recvmsg(
            READ_SIZE, socket.CMSG_SPACE(MOST_PASSED * 4), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        )
        passed: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                passed += struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
        if passed:
            self._house.closer.close(self.container, passed)
            raise WireError("file descriptors where none belong")
        return data

    def _deal(self, frame: Frame) -> None:
        if (frame.type == Type.HELLO) is self.greeted:
            raise WireError("HELLO is to be said once, and first")
        if frame.type == Type.HELLO:
            self.greeted = True
            self._impatience.cancel()
            self._house.handler.hello(self, frame)
        else:
            self._house.handler.message(self, frame)

    def room(self, taken: int) -> int:
        """For so many more processes of everybody, who have `taken` of them together."""
        return self._house.room(taken)

    def hold(self, unheard: Frame | None = None) -> None:
        """Hears nothing more for now; `unheard` is heard first, then."""
        if unheard is not None:
            self._frames.appendleft(unheard)
        if self.open:
            self._held = True
            self._be_deaf()

    def go_on(self) -> None:
        if self.open and self._held:
            self._held = False
            if not self._queued:
                self._queue()

    # ---- what it is sent ----

    def send(self, frame: Frame, page: int | None = None) -> None:
        """Sends now what goes now and keeps the rest."""
        self._unsent.append(frame)
        if len(self._unsent) > 1:
            if len(self._unsent) > UNSENT_LIMIT:
                self.hold()  # until it is closed
                self._loop.call_soon(self.close, "it does not read its answers")
            return
        rights = [] if page is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", page))]
        self._flush(rights)
        if self._unsent and self.open:
            self._loop.add_writer(self._fd, self._flush)

    def _flush(self, rights: list[tuple[int, int, bytes]] | None = None) -> None:
        data = b"".join(pack(frame) for frame in self._unsent)[self._cut :]
        try:
            sent = self._cut + self._socket.sendmsg([data], rights or [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            self._loop.remove_writer(self._fd)
            self._loop.call_soon(self.close)
            return
        for _ in range(sent // FRAME_SIZE):
            self._unsent.popleft()
        self._cut = sent % FRAME_SIZE
        if not self._unsent:
            self._loop.remove_writer(self._fd)

    def close(self, complaint: str = "") -> None:
        if not self.open:
            return
        self.open = False
        if complaint:
            self._house.complain(self.container, f"connection of process {self.peer.pid} closed: {complaint}")
        self._impatience.cancel()
        self._be_deaf()
        self._loop.remove_writer(self._fd)
        self._house.forget(self, self._socket)
        self._house.handler.closed(self)
