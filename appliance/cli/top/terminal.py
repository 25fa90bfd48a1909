"""The terminal while `top` has it: keys without Enter, a screen of its own, and everything as before afterwards.

Only lines that have changed are written, all at once and between two marks that tell the terminal to show them together
(synchronised output; who does not know the marks ignores them): nothing flickers, and nothing is cleared first.
"""

import codecs
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import FrameType, TracebackType

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NOTED = (*ENDS, signal.SIGWINCH, signal.SIGTSTP)
NEWS = 0  # in the pipe, where signals have their numbers
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # another screen, no cursor, no wrapping
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
TOGETHER, NOW = "\x1b[?2026h", "\x1b[?2026l"
LONE = 0.05  # seconds after which an Escape is the key and not the beginning of another one's sequence
SMALLEST = (80, 24)  # where the terminal does not say


class Gone(Exception):
    """A signal asked for the end, or the terminal has gone."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Terminal:
    """`with Terminal() as terminal:` whatever ends it, but for SIGKILL, leaves the terminal as it was."""

    def __init__(self) -> None:
        self._keyboard = os.isatty(0)
        self._keys = Keys()
        self._before: list[object] = []
        self._shown: list[str] = []
        self._size = (0, 0)

    def __enter__(self) -> "Terminal":
        self._reads, self._writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A handler that raised could do so anywhere. This one does nothing: the number comes through the pipe.
        self._handlers = {number: signal.signal(number, _nothing) for number in NOTED}
        self._wakes = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        try:
            self._take()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(Gone):
            self._give_back()  # the pipe stays: another thread may just be writing to it
        signal.set_wakeup_fd(self._wakes)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def wake(self) -> None:
        """From any thread: there are news."""
        with suppress(BlockingIOError):  # it is full of reasons to wake
            os.write(self._writes, bytes([NEWS]))

    def size(self) -> tuple[int, int]:
        """Columns and lines. Raises Gone."""
        try:
            columns, lines = os.get_terminal_size(1)
        except OSError:
            raise Gone(signal.SIGHUP) from None
        return (columns or SMALLEST[0], lines or SMALLEST[1])

    def wait(self, seconds: float) -> list[str]:
        """The keys that were typed; none if there are news, another size, or nothing for so long. Raises Gone."""
        sources = [self._reads, *([0] if self._keyboard else [])]
        ready, _, _ = select.select(sources, [], [], LONE if self._keys.unsure else seconds)
        if self._reads in ready:
            for number in os.read(self._reads, 4096):
                self._noted(number)
        if 0 not in ready:
            return self._keys.late() if not ready else []
        try:
            data = os.read(0, 1024)
        except OSError:
            raise Gone(signal.SIGHUP) from None
        self._keyboard = bool(data)
        return list(self._keys.typed(data))

    def show(self, lines: Sequence[str]) -> None:
        """Writes those that differ from what is there. Raises Gone."""
        if self._size != (size := self.size()):
            self._size, self._shown = size, []  # a terminal shifts and wraps what it holds as it likes
        changed = [
            f"\x1b[{at + 1};1H{line}"
            for at, line in enumerate(lines)
            if at >= len(self._shown) or self._shown[at] != line
        ]
        self._shown = list(lines)
        if changed:
            self._write(TOGETHER + "".join(changed) + NOW)

    def _noted(self, number: int) -> None:
        if number in ENDS:
            raise Gone(number)
        if number == signal.SIGTSTP:
            self._give_back()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._take()  # somebody has said `fg`

    def _take(self) -> None:
        if self._keyboard:
            self._before = termios.tcgetattr(0)
            tty.setcbreak(0, termios.TCSANOW)
            mode = termios.tcgetattr(0)
            mode[0] &= ~termios.IXON  # Ctrl-S would stop the screen, and our end with it
            termios.tcsetattr(0, termios.TCSANOW, mode)
        self._shown = []
        self._write(ENTER)

    def _give_back(self) -> None:
        if self._before:
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, self._before)  # type: ignore[arg-type]
            self._before = []
        self._write(LEAVE)

    def _write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "utf-8", "replace")
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            raise Gone(signal.SIGHUP) from None


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


class Keys:
    """Bytes of a keyboard into keys: a letter, or a name such as "up". What is none of them is swallowed."""

    NAMES = {
        "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "1~": "home", "7~": "home",
        "4~": "end", "8~": "end", "5~": "page up", "6~": "page down",
        "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace",
    }  # fmt: skip
    _SEQUENCE = re.compile(r"\x1b(?:\[(?P<long>[0-9;?]*[@-~])|O(?P<short>.))", re.DOTALL)
    _BEGINNING = re.compile(r"\x1b(?:\[[0-9;?]*|O)?")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._held = ""

    @property
    def unsure(self) -> bool:
        """What has come may be a key, or the beginning of another."""
        return bool(self._held)

    def typed(self, data: bytes) -> Iterator[str]:
        text, self._held = self._held + self._decoder.decode(data), ""
        while text:
            if found := self._SEQUENCE.match(text):
                text = text[found.end() :]
                if key := self.NAMES.get(found["long"] or found["short"]):
                    yield key
            elif self._BEGINNING.fullmatch(text):
                self._held, text = text, ""
            else:
                char, text = text[0], text[1:]
                key = "escape" if char == "\x1b" else self.NAMES.get(char, char)
                if key.isprintable():
                    yield key

    def late(self) -> list[str]:
        """Nothing has followed."""
        held, self._held = self._held, ""
        return ["escape"] if held else []
