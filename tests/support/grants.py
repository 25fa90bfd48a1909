"""The scheduler's end of the socket for tests of the shim: real frames, real lease pages, and no policy at all.

    grants = Grants(folder, uuids, quota=512 * MIB)     # answers by itself: up to the quota, rejected beyond
    grants.hold()                                       # from now on questions wait in `grants.open`
    grants.answer(grants.next_open())

It counts as the scheduler does: what the page says is leased, its headroom subtracted.
"""

import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shim.binding import FRAME_SIZE, WIRE_VERSION, Code, Frame, LeasePage, Type, pack, unpack
from tests.support.eventually import until

BUILD = Path(__file__).resolve().parent.parent.parent / ".build"
CONTEXT = 66 << 20  # what a context of the simulated card takes


@dataclass(eq=False)
class Peer:
    """One process that has said HELLO."""

    pid: int
    connection: socket.socket
    page: LeasePage
    frames: list[Frame] = field(default_factory=list)
    reconnected: bool = False
    closed: bool = False

    def used(self, slot: int = 0) -> int:
        return self.page[slot].used


class Grants:
    def __init__(
        self,
        folder: Path,
        uuids: Sequence[bytes],
        quota: int,
        *,
        extra: int = 0,
        context: int = CONTEXT,
        refuse: Code | None = None,
    ) -> None:
        """`uuids`: the GPUs that get a slot. `extra`: headroom that comes with each grant, as the quota allows."""
        self.uuids = list(uuids)
        self.quota, self.extra, self.context, self.refuse = quota, extra, context, refuse
        self.path = folder / "gpushare.sock"
        self.peers: list[Peer] = []
        self.open: queue.Queue[tuple[Peer, Frame]] = queue.Queue()
        self._holding = False
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.listen()

    # ---- life ----

    def listen(self) -> None:
        """Opens the socket (again)."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(self.path.parent, os.O_PATH)
        self._listener.bind(f"/proc/self/fd/{folder}/{self.path.name}")
        os.close(folder)
        self._listener.listen(512)
        self._start(self._accept, self._listener)

    def go_away(self, *, leave_socket: bool = True) -> None:
        """As if the scheduler had been killed."""
        if self._listener.fileno() >= 0:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for peer in self.peers:
            self._hang_up(peer)
        if not leave_socket:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self.go_away()
        for thread in self._threads:
            thread.join()
        for peer in self.peers:
            peer.connection.close()
            peer.page.close()

    def env(self) -> dict[str, str]:
        return {"GPUSHARE_SOCKET": str(self.path), "LD_PRELOAD": str(BUILD / "libgpushare.so")}

    # ---- what tests ask ----

    def hold(self) -> None:
        self._holding = True

    def release(self) -> None:
        """What is asked from now on is answered at once again."""
        self._holding = False

    def next_open(self) -> tuple[Peer, Frame]:
        return self.open.get(timeout=60)

    def answer(self, question: tuple[Peer, Frame], code: Code = Code.OK) -> None:
        peer, frame = question
        with self._lock:
            if code == Code.OK:
                peer.page[frame.slot].grant(frame.bytes)
                self._send(peer, Frame(Type.GRANTED, frame.slot, frame.serial, bytes=frame.bytes))
            else:
                self._send(peer, Frame(Type.REJECTED, frame.slot, frame.serial, code=code))

    def used(self, slot: int = 0) -> int:
        """What the processes that are connected use."""
        return sum(peer.used(slot) for peer in self.peers if not peer.closed)

    def take_back(self, peer: Peer, slot: int = 0) -> int:
        with self._lock:
            return peer.page[slot].take_back(2**64 - 1)

    def only_peer(self) -> Peer:
        until(lambda: len(self.peers) == 1)
        return self.peers[0]

    # ---- the socket ----

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(FRAME_SIZE)
        except OSError:
            data = b""
        if len(data) != FRAME_SIZE:
            connection.close()
            return
        hello = unpack(data)
        assert hello.type == Type.HELLO
        assert hello.code == WIRE_VERSION
        if self.refuse is not None:
            connection.sendall(pack(Frame(Type.REFUSED, code=self.refuse)))
            connection.close()
            return
        peer = self._welcome(connection)
        while len(data := self._receive(connection)) == FRAME_SIZE:
            self._take(peer, unpack(data))
        peer.closed = True

    def _receive(self, connection: socket.socket) -> bytes:
        try:
            return connection.recv(FRAME_SIZE, socket.MSG_WAITALL)
        except OSError:
            return b""

    def _welcome(self, connection: socket.socket) -> Peer:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", credentials)[0]
        with self._lock:
            # Known before it is answered: a test looks for it as soon as the program goes on.
            if had := self._page_of(pid):
                peer = Peer(pid, connection, LeasePage.adopt(os.dup(had.fileno())), reconnected=True)
            else:
                peer = Peer(pid, connection, LeasePage.create(self.uuids))
                for slot in peer.page:
                    slot.quota, slot.context = self.quota, self.context
            self.peers.append(peer)
            socket.send_fds(connection, [pack(Frame(Type.WELCOME))], [peer.page.fileno()])
        return peer

    def _page_of(self, pid: int) -> LeasePage | None:
        """The page that this process has mapped already; a program that it has become has not."""
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        pages = [peer.page for peer in reversed(self.peers) if peer.pid == pid]
        return next((page for page in pages if f" {os.fstat(page.fileno()).st_ino} " in maps), None)

    def _take(self, peer: Peer, frame: Frame) -> None:
        peer.frames.append(frame)
        if frame.type != Type.NEED:
            return
        if self._holding:
            self.open.put((peer, frame))
            return
        with self._lock:
            left = self.quota - sum(other.page[frame.slot].leased for other in self.peers if not other.closed)
            if frame.bytes > left:
                left += peer.page[frame.slot].take_back(2**64 - 1)
            if frame.bytes > left:
                self._send(peer, Frame(Type.REJECTED, frame.slot, frame.serial, code=Code.OVER_QUOTA))
                return
            extra = min(self.extra, left - frame.bytes)
            peer.page[frame.slot].grant(frame.bytes)
            peer.page[frame.slot].extend(extra)
            self._send(peer, Frame(Type.GRANTED, frame.slot, frame.serial, bytes=frame.bytes))

    def _send(self, peer: Peer, frame: Frame) -> None:
        try:
            peer.connection.sendall(pack(frame))
        except OSError:
            peer.closed = True

    def _hang_up(self, peer: Peer) -> None:
        try:
            peer.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            peer.closed = True
