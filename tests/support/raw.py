"""A process's end of a container's socket, by hand: for everything that the shim would never do."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from shim.binding import FRAME_SIZE, WIRE_VERSION, Frame, LeasePage, Type, pack, unpack

ROOT = Path(__file__).resolve().parent.parent.parent


class Raw:
    """One connection. Every read waits a minute at most; the end of the connection reads as None."""

    def __init__(self, directory: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(60)
        folder = os.open(directory, os.O_PATH)
        try:
            self.socket.connect(f"/proc/self/fd/{folder}/gpushare.sock")
        finally:
            os.close(folder)

    def send(self, *frames: Frame) -> None:
        self.send_bytes(b"".join(pack(frame) for frame in frames))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> Frame | None:
        try:
            data, files, _, _ = socket.recv_fds(self.socket, FRAME_SIZE, 1)
        except ConnectionResetError:
            return None
        self.file = files[0] if files else None
        return unpack(data) if data else None

    def hello(self) -> LeasePage:
        """Says HELLO; the page that came with WELCOME."""
        self.send(Frame(Type.HELLO, code=WIRE_VERSION))
        welcome = self.read()
        assert welcome is not None
        assert welcome.type == Type.WELCOME, welcome
        assert self.file is not None
        self.page = LeasePage.adopt(self.file)  # kept mapped, as a program does: without it, it would be another one
        return self.page

    def need(self, size: int, serial: int = 1, slot: int = 0) -> None:
        self.send(Frame(Type.NEED, slot, serial, 0, size))

    def is_closed(self) -> bool:
        """Whether the other end closes it: waits for that, and reads what came before."""
        while (frame := self.read()) is not None:
            assert frame.type != Type.GRANTED
        return True

    def close(self) -> None:
        self.socket.close()


_ELSEWHERE = """
import os, sys
from pathlib import Path
from tests.support.raw import Raw
raw = Raw(Path(sys.argv[1]))
page = raw.hello()
print(os.getpid(), flush=True)
for line in sys.stdin:
    raw.need(int(line), serial=99)
    print(raw.read(), flush=True)
"""


def beside(script: str, *words: object) -> subprocess.Popen[str]:
    """A Python program in a process of its own, to be written to, and to be read from in a thread."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


class Elsewhere:
    """A raw connection in a process of its own: the scheduler tells processes apart by the kernel's word."""

    def __init__(self, directory: Path) -> None:
        self.process = beside(_ELSEWHERE, directory)
        self.pid = int(self._line())

    def need(self, size: int) -> str:
        """What the scheduler answers, as text."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{size}\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
