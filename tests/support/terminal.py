"""A terminal with a program in it: what a person types and sees, and the size of the window."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence

import pyte

from tests.support.eventually import PATIENCE


class Terminal:
    """`with Terminal(command) as terminal`: ended when the test leaves it."""

    def __init__(self, command: Sequence[str], environ: dict[str, str], rows: int = 33, columns: int = 111) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(rows, columns)
        self.before = self.settings()
        self.seen = b""
        # A session of its own whose controlling terminal this is, as a shell would have it.
        self.process = subprocess.Popen(
            command, stdin=self._slave, stdout=self._slave, stderr=self._slave, env=environ, cwd="/",
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self._master)
        os.close(self._slave)

    def settings(self) -> list[object]:
        """Raw or not, echo or not: what `stty` shows."""
        return termios.tcgetattr(self._slave)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, words: str, within: float = PATIENCE) -> str:
        """What has been shown since the last call, up to and with these words."""
        deadline = time.monotonic() + within
        while words.encode() not in self.seen:
            assert time.monotonic() < deadline, f"{words!r} is not in {self.seen!r}"
            self._read(0.1)
        at = self.seen.index(words.encode()) + len(words.encode())
        shown, self.seen = self.seen[:at], self.seen[at:]
        return shown.decode()

    def exit_code(self, within: float = PATIENCE) -> int:
        deadline = time.monotonic() + within
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it still runs; it showed {self.seen!r}"
            self._read(0.05)
        while self._read(0):
            pass
        return self.process.returncode

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def _read(self, timeout: float) -> bool:
        if not select.select([self._master], [], [], timeout)[0]:
            return False
        self.seen += os.read(self._master, 65536)
        return True


class Screen(Terminal):
    """A terminal whose screen can be looked at: pyte does with the bytes what a terminal does."""

    def __init__(self, command: Sequence[str], environ: dict[str, str], rows: int = 24, columns: int = 80) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.written: list[bytes] = []
        super().__init__(command, environ | {"TERM": "xterm-256color"}, rows, columns)

    @property
    def lines(self) -> list[str]:
        """What stands there, without the spaces at the right. A wide character is followed by nothing."""
        return [line.rstrip() for line in self._screen.display]

    def resize(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        super().resize(rows, columns)

    def shows(self, condition: Callable[[list[str]], object], within: float = PATIENCE) -> list[str]:
        """The lines as soon as they are so, and nothing is half drawn."""
        deadline = time.monotonic() + within
        while self._half_drawn() or not condition(self.lines):
            assert time.monotonic() < deadline, "\n".join(self.lines)
            self._read(0.1)
        return self.lines

    def _half_drawn(self) -> bool:
        said = b"".join(self.written)
        return said.count(b"\x1b[?2026h") > said.count(b"\x1b[?2026l")

    def rests(self, seconds: float) -> bytes:
        """What is written meanwhile."""
        before, deadline = len(self.written), time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read(0.05)
        return b"".join(self.written[before:])

    def _read(self, timeout: float) -> bool:
        before = len(self.seen)
        done = super()._read(timeout)
        if new := self.seen[before:]:
            self.written.append(new)
            self._stream.feed(new)
        return done
