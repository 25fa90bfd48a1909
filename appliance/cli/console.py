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
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from appliance.cli import output
from appliance.cli.client import CONNECT, Client, Json
from appliance.cli.errors import Problem, from_answer, unreachable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

CHUNK = 16 << 10  # bytes
WINDOW = 256 << 10  # bytes
LEAVE = b"\x10\x11"  # Ctrl-P Ctrl-Q, docker's keys to leave a terminal


class FrameKind(IntEnum):
    INPUT = 0
    OUTPUT = 1
    ERRORS = 2
    RESIZE = 3  # rows and columns, two bytes each, big-endian
    END = 4
    TAKEN = 5  # how many bytes, four bytes, big-endian
    EXIT = 8  # the exit code of one more program, four bytes, big-endian, signed


class Console:
    """`with` it, the terminal is as it was afterwards, whatever happens."""

    def __init__(self, client: Client, *, interactive: bool, tty: bool, command: Sequence[str] | None = None) -> None:
        """`command`: one more program in the container; empty: a shell. None: the container's own."""
        self._client, self._interactive, self._tty, self._command = client, interactive, tty, command
        self.exit_code: int | None = None  # of one more program, when it has ended
        self._socket: ClientConnection | None = None
        self._room = threading.Condition()
        self._untaken = 0
        self._left = False
        self._terminal = Terminal()

    def __enter__(self) -> Console:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._terminal.restore()

    def pass_on(self, container: Json) -> bool:
        """Until the output ends, or, then false, somebody has typed Ctrl-P Ctrl-Q. Raises Problem, BrokenPipeError."""
        from websockets.exceptions import ConnectionClosed, InvalidHandshake
        from websockets.sync.client import connect
        from websockets.typing import Origin

        address = urlsplit(self._client.url)
        way = "console" if self._command is None else "exec"
        try:
            with connect(
                f"ws{self._client.url.removeprefix('http')}/ws/containers/{container['id']}/{way}/",
                origin=Origin(f"{address.scheme}://{address.netloc}"),
                additional_headers={"Authorization": f"Token {self._client.token}"},
                compression=None,
                open_timeout=CONNECT,
                max_queue=None,  # WINDOW bounds it
            ) as self._socket:
                if self._command is None:
                    self.resize()
                else:
                    self._socket.send(json.dumps(self._asked(self._command)))
                if self._interactive:
                    if self._tty:
                        self._terminal.make_raw()
                    threading.Thread(target=self._type, args=[self._socket], daemon=True).start()
                return self._show(self._socket)
        except ConnectionClosed:
            if self._left:
                return False
            goes_on = f"it goes on, if it has not ended: gpushare attach {container['name']}"
            hint = goes_on if self._command is None else "what was started over it ends"
            raise Problem(f"the connection to {container['name']} broke", code="dropped", hint=hint) from None
        except (OSError, InvalidHandshake) as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise unreachable(self._client.url, error) from None
        finally:
            self._terminal.restore()

    def _asked(self, command: Sequence[str]) -> Json:
        size = {}
        with suppress(OSError):
            found = _size()
            size = {"rows": max(1, found.lines), "columns": max(1, found.columns)}
        return {"command": list(command), "interactive": self._interactive, "tty": self._tty, **size}

    def resize(self) -> None:
        """Tells it how large our window is."""
        from websockets.exceptions import ConnectionClosed

        if self._tty and self._socket:
            with suppress(OSError, ConnectionClosed):
                size = _size()
                self._socket.send(struct.pack("!BHH", FrameKind.RESIZE, size.lines, size.columns))

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
            elif kind == FrameKind.EXIT:
                self.exit_code = struct.unpack("!i", data)[0]
            elif kind == FrameKind.END:
                return True

    def _type(self, socket: ClientConnection) -> None:
        """In a thread of its own, which the end of the process ends."""
        from websockets.exceptions import ConnectionClosed

        keys = Keys() if self._tty and self._command is None else None
        with suppress(OSError, ConnectionClosed):
            while data := os.read(0, CHUNK):
                if keys:
                    data = keys.typed(data)
                if data:
                    with self._room:
                        self._room.wait_for(lambda: self._untaken < WINDOW - CHUNK)
                        self._untaken += len(data)
                    socket.send(bytes([FrameKind.INPUT]) + data)
                if keys and keys.left:
                    self._left = True
                    socket.close()
                    return
            socket.send(bytes([FrameKind.END]))


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
            if not self._over:
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
