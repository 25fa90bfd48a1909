"""A container's keyboard and screen, here: over the WebSocket /ws/containers/ID/console/; those of one more program in
it over /ws/containers/ID/exec/, where the first message says which.

A binary message is a frame: its kind (a byte) and what belongs to it. A text message is a refusal, as REST would have
answered. Neither side sends more than WINDOW bytes of which the other has not said that they were taken, so the
connection never stands still because a program does not read or a terminal does not scroll.
"""

from __future__ import annotations

import json
import os
import struct
import termios
import threading
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING

from appliance import proxies
from appliance.cli import output
from appliance.cli.client import Client, Json
from appliance.cli.errors import Problem, from_answer, unreachable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

CHUNK = 16 << 10  # bytes
WINDOW = 256 << 10  # bytes
AGAIN = 0.5  # seconds between two attempts to come back
LEAVE = b"\x10\x11"  # Ctrl-P Ctrl-Q, docker's keys to leave a terminal


class FrameKind(IntEnum):
    INPUT = 0
    OUTPUT = 1
    ERRORS = 2
    RESIZE = 3  # rows and columns, two bytes each, big-endian
    END = 4
    TAKEN = 5  # how many bytes, four bytes, big-endian
    OPEN = 6  # the container's end answers; not of 0.1.0's appliances
    EXIT = 8  # the exit code of one more program, four bytes, big-endian, signed


class Console:
    """`with` it, the terminal is as it was afterwards, whatever happens."""

    def __init__(self, client: Client, *, interactive: bool, tty: bool, command: Sequence[str] | None = None) -> None:
        """`command`: one more program in the container; empty: a shell. None: the container's own."""
        self._client, self._interactive, self._tty, self._command = client, interactive, tty, command
        self.exit_code: int | None = None  # of one more program, when it has ended
        self._socket: ClientConnection | None = None  # while there is a connection
        self._is_open = self._was_open = False  # the container's end answers, or has answered
        self._room = threading.Condition()
        self._untaken = 0
        self._early = b""  # typed while there is no connection
        self._left = False
        self._terminal = Terminal()

    def __enter__(self) -> Console:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._terminal.restore()

    @property
    def comes_back(self) -> bool:
        """Where the appliance goes and comes back, as at an upgrade. What is piped in without a terminal has ended for
        its program then, and one more program has ended itself."""
        return self._tty and self._command is None

    def pass_on(self, container: Json, say: Callable[[str], None] = lambda line: None) -> bool:
        """Until the output ends, or, then false, somebody has typed Ctrl-P Ctrl-Q. Raises Problem, BrokenPipeError.

        A container's own terminal that was open is connected again for as long as it takes: its program has gone on.
        """
        name, self._say = container["name"], say
        try:
            while not self._left:
                try:
                    return self._connected(container)
                except Problem as problem:
                    if not (self.comes_back and self._was_open):
                        raise
                    if problem.code == "container_ended":
                        say(f"{name} has ended; its output: gpushare logs {name}")
                        return True
                    if not problem.away:
                        raise
                if self._is_open:
                    self._is_open = False
                    say(f"the connection to {name} broke; reconnecting. Ctrl-P Ctrl-Q leaves")
                with self._room:
                    self._room.wait_for(lambda: self._left, AGAIN)
            return False
        finally:
            self._terminal.restore()

    def _connected(self, container: Json) -> bool:
        """As `pass_on`, over one connection."""
        from websockets.exceptions import ConnectionClosed, InvalidHandshake
        from websockets.sync.client import connect

        way = "console" if self._command is None else "exec"
        try:
            try:
                connection = connect(
                    **self._client.websocket(f"containers/{container['id']}/{way}/"),
                    max_queue=None,  # WINDOW bounds it
                )
            except ImportError as error:
                raise Problem(str(proxies.unusable(self._client.url, error)), code="bad_proxy") from None
            except (OSError, InvalidHandshake) as error:
                raise unreachable(self._client.url, error) from None
            with connection as socket:
                if not self._was_open:
                    self._begin(socket)
                return self._show(socket)
        except ConnectionClosed:
            if self._left:
                return False
            goes_on = f"it may still run: gpushare attach {container['name']}"
            hint = goes_on if self._command is None else "its program ends"
            raise Problem(f"the connection to {container['name']} broke", code="dropped", hint=hint) from None
        finally:
            with self._room:
                self._socket = None
                self._room.notify_all()

    def _begin(self, socket: ClientConnection) -> None:
        self._socket = socket
        if self._command is None:
            self.resize()
        else:
            socket.send(json.dumps(self._asked(self._command)))
        if self._interactive:
            if self._tty:
                self._terminal.make_raw()
            threading.Thread(target=self._type, daemon=True).start()

    def _opened(self, socket: ClientConnection) -> None:
        """The container's end answers; after it was away, too."""
        again, self._is_open, self._was_open = self._was_open, True, True
        if not again:
            return
        self._say("connected again")
        with self._room:
            self._socket, self._untaken = socket, len(self._early)
            while self._early:
                socket.send(bytes([FrameKind.INPUT]) + self._early[:CHUNK])
                self._early = self._early[CHUNK:]
            self._room.notify_all()
        self.resize(by=1)  # only of a change a program hears, and draws its screen anew
        self.resize()

    def _asked(self, command: Sequence[str]) -> Json:
        size = {}
        with suppress(OSError):
            found = _size()
            size = {"rows": max(1, found.lines), "columns": max(1, found.columns)}
        return {"command": list(command), "interactive": self._interactive, "tty": self._tty, **size}

    def resize(self, by: int = 0) -> None:
        """Tells it how large our window is. `by`: so many lines larger than that."""
        from websockets.exceptions import ConnectionClosed

        if self._tty and (socket := self._socket):
            with suppress(OSError, ConnectionClosed):
                size = _size()
                socket.send(struct.pack("!BHH", FrameKind.RESIZE, size.lines + by, size.columns))

    def _show(self, socket: ClientConnection) -> bool:
        from websockets.exceptions import ConnectionClosed

        while True:
            message = socket.recv()
            if isinstance(message, str):
                refusal = json.loads(message)
                raise from_answer(refusal["status"], refusal)
            kind, data = message[0], message[1:]
            if kind in (FrameKind.OUTPUT, FrameKind.ERRORS):
                output.write(data, kind)  # they are numbered as descriptors are
                with suppress(ConnectionClosed):  # closed behind an END that we have not read yet
                    socket.send(struct.pack("!BI", FrameKind.TAKEN, len(data)))
            elif kind == FrameKind.TAKEN:
                with self._room:
                    self._untaken -= struct.unpack("!I", data)[0]
                    self._room.notify()
            elif kind == FrameKind.OPEN:
                self._opened(socket)
            elif kind == FrameKind.EXIT:
                self.exit_code = struct.unpack("!i", data)[0]
            elif kind == FrameKind.END:
                return True

    def _type(self) -> None:
        """In a thread of its own, which the end of the process ends."""
        from websockets.exceptions import ConnectionClosed

        keys = Keys() if self._tty and self._command is None else None
        with suppress(OSError, ConnectionClosed):
            while data := os.read(0, CHUNK):
                if data := keys.typed(data) if keys else data:
                    self._pass(data)
                if keys and keys.left:
                    with self._room:
                        self._left, socket = True, self._socket
                        self._room.notify_all()
                    if socket:
                        socket.close()
                    return
            if socket := self._socket:
                socket.send(bytes([FrameKind.END]))

    def _pass(self, data: bytes) -> None:
        """What was typed, once there is room for it. What is typed while nobody is there is passed on later."""
        from websockets.exceptions import ConnectionClosed

        while True:
            with self._room:
                self._room.wait_for(lambda: self._socket is None or self._untaken < WINDOW - CHUNK)
                socket = self._socket
                if socket is None:
                    self._early = (self._early + data)[: WINDOW - CHUNK]
                    return
                self._untaken += len(data)
            try:
                socket.send(bytes([FrameKind.INPUT]) + data)
            except ConnectionClosed:
                with self._room:
                    if self._socket is socket:  # it broke, and who reads from it has not noticed yet
                        self._socket = None
            else:
                return


def _size() -> os.terminal_size:
    return os.get_terminal_size(1 if os.isatty(1) else 0)


class Keys:
    """Looks out for LEAVE in what is typed. Its first key is held back until the next one is known."""

    def __init__(self) -> None:
        self.left = False
        self._held = b""

    def typed(self, data: bytes) -> bytes:
        """What is to be passed on."""
        data = self._held + data
        before, found, _ = data.partition(LEAVE)
        self.left = bool(found)
        self._held = LEAVE[:1] if not found and data.endswith(LEAVE[:1]) else b""
        return before if found else data.removesuffix(self._held)


class Terminal:
    """Ours, raw while it is a container's: every key is passed on, and nothing is done to what is shown."""

    def __init__(self) -> None:
        self._before: list[object] | None = None
        self._over = False
        self._lock = threading.Lock()

    def make_raw(self) -> None:
        with self._lock:
            if not self._over and self._before is None:
                self._before = termios.tcgetattr(0)
                tty.setraw(0, termios.TCSANOW)
                output.raw = True

    def restore(self) -> None:
        """For good. Not before all is shown, which a stopped terminal would hold up, but now."""
        with self._lock:
            self._over = True
            if self._before is not None:
                with suppress(termios.error):  # it has gone
                    termios.tcsetattr(0, termios.TCSANOW, self._before)  # type: ignore[arg-type]
                self._before, output.raw = None, False
