"""The driver's own calls on a process, timed, and what trials on a device have found so far."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.gpus import uuid_bytes
from tests.support.appliance import ROOT

WORKER = ROOT / "scheduler/card/worker.py"


class Found:
    """Figures, printed and kept in `file` as they come; `seconds`: until `left` is 0."""

    def __init__(self, file: Path, seconds: float) -> None:
        self._file, self._ends = file, time.monotonic() + seconds
        self.figures: dict[str, Any] = {}
        self.wrong: list[str] = []

    @property
    def left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def say(self, name: str, value: Any, fine: bool = True) -> None:
        self.figures[name] = value
        self.wrong += [] if fine else [name]
        print(f"[{self.left:.0f}] {name}: {value}{'' if fine else '   WRONG'}", flush=True)
        self._file.write_text(json.dumps({**self.figures, "wrong": self.wrong}, indent=1))

    def has_time(self, name: str, seconds: float) -> bool:
        if self.left < seconds:
            self.say(f"{name} left out", f"it takes {seconds:.0f} s", fine=False)
        return self.left >= seconds


class Calls:
    """By the scheduler's worker."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WORKER)], stdin=-1, stdout=-1, text=True, env=environment
        )
        assert self.process.stdout
        ready = self.process.stdout.readline()
        assert ready.startswith("ready"), ready

    def begin(self, order: str, pid: int, *more: object) -> None:
        assert self.process.stdin
        print(order, pid, *more, file=self.process.stdin, flush=True)

    def done(self) -> tuple[int, float]:
        """CUresult, seconds."""
        assert self.process.stdout
        code, _, seconds = self.process.stdout.readline().split()
        return int(code), float(seconds)

    def do(self, order: str, pid: int, *more: object) -> tuple[int, float]:
        self.begin(order, pid, *more)
        return self.done()

    def out(self, pid: int) -> tuple[int, float]:
        code, locked = self.do("lock", pid, 30_000)
        gone, took = self.do("checkpoint", pid)
        return code or gone, locked + took

    def back(self, pid: int, pairs: Sequence[tuple[str, str]] = ()) -> tuple[int, float]:
        words = [f"{uuid_bytes(old).hex()}:{uuid_bytes(new).hex()}" for old, new in pairs]
        code, took = self.do("restore", pid, *words)
        return (code, took) if code else (self.do("unlock", pid)[0], took)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def median(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds), 2) if seconds else 0.0
