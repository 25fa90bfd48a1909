"""A simulated card of its own for a test, and programs that run on it.

    def test_something(card):          # one GPU of 5 GiB
        card.run("--bytes", "1GiB")    # the workload, to its end
        process = card.start("--hold", "60")

Another card: `@pytest.mark.parametrize("card", ["sim:2x1GiB"], indirect=True)`.
Use it by `from tests.support.card import card  # noqa: F401`, or through conftest.py.
"""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shim.sim
from tests.support.eventually import PATIENCE

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / ".build"
MIB = 1 << 20
CONTEXT = 66 * MIB  # what a simulated context takes

_NVML = """
import ctypes, json, sys
from pathlib import Path
import shim.sim
shim.sim.load_nvml(Path(sys.argv[1]))
import pynvml
pynvml.nvmlInit()
driver = shim.sim.load_nvml(Path(sys.argv[1]))
def had(gpu):
    pids, ns, at = (ctypes.c_int * 64)(), (ctypes.c_uint64 * 64)(), ctypes.c_uint64()
    found = driver.sim_card_had(gpu, 64, pids, ns, ctypes.byref(at))
    return at.value, dict(zip(pids[:found], ns[:found]))
def samples(gpu, since):
    try:
        return [(s.pid, s.timeStamp, s.smUtil) for s in pynvml.nvmlDeviceGetProcessUtilization(gpu, since)]
    except pynvml.NVMLError_NotFound:
        return []
for line in sys.stdin:
    since, *order = line.split()
    if order:
        name, *numbers = order
        getattr(driver, name)(*map(ctypes.c_uint64, map(int, numbers)))
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    print(json.dumps([{
        "uuid": pynvml.nvmlDeviceGetUUID(gpu),
        "total": pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
        "used": pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
        "held": {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)},
        "had": had(i),
        "busy": pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "samples": samples(gpu, int(since)),
    } for i, gpu in enumerate(gpus)]), flush=True)
"""


class Card:
    """A card file, the environment that names it, and the processes started on it."""

    def __init__(self, description: str, folder: Path, free_delay: float = shim.sim.FREE_DELAY) -> None:
        self.description = description
        self.path = folder / "card" / "state"
        self.free_delay = free_delay
        shim.sim.create(description, self.path, BUILD, free_delay)
        self.processes: list[subprocess.Popen[Any]] = []
        self._nvml: subprocess.Popen[str] | None = None

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a program on this card."""
        return {
            **os.environ,
            "GPUSHARE_SIM": str(self.path),
            "LD_LIBRARY_PATH": str(BUILD / "sim"),
            "PYTHONPATH": str(ROOT),
            **more,
        }

    def popen(self, words: list[str], env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """Starts a program; it is killed when the test ends."""
        process = subprocess.Popen(words, env=self.env(**(env or {})), text=True, **options)
        self.processes.append(process)
        return process

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """Starts the workload; its lines are in `stdout`."""
        return self.popen([str(BUILD / "workload"), *arguments], env=env, stdout=subprocess.PIPE)

    def hold(self, size: str) -> subprocess.Popen[str]:
        """The workload, which has so much and keeps it."""
        holder = self.start("--bytes", size, "--chunks", "1", "--check", "1m", "--hold", "600")
        read_until(holder, "holding")
        return holder

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs the workload to its end."""
        words = [str(BUILD / "workload"), *arguments]
        return subprocess.run(words, env=self.env(**env), text=True, capture_output=True, timeout=200, check=False)

    def python(self, program: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """Starts a Python program on the card; stdin and stdout are pipes."""
        words = [sys.executable, "-c", program, *arguments]
        return self.popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def check(self, program: str, **env: str) -> str:
        """Runs Python code that uses tests.support.cuda to its end; its output. A failed assert there fails here."""
        code = "from tests.support.cuda import *\n" + textwrap.dedent(program)
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env=self.env(**env), text=True, capture_output=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def order(self, name: str, *numbers: int) -> None:
        """Calls what only the simulated NVML has: sim_card_speed, sim_card_fault."""
        self._ask(f"{name} {' '.join(map(str, numbers))}")

    def gpus(self, since: int = 0) -> list[dict[str, Any]]:
        """What NVML says of each GPU, asked from another process.

        uuid, total and used; held: {pid: bytes}; busy: per cent; samples, of what was `since` then: [[pid, µs since the
        epoch, per cent]]; had, by the card's own clock: (ns, {pid: ns of a card of its own}).
        """
        return self._ask(since=since)

    def _ask(self, order: str = "", since: int = 0) -> list[dict[str, Any]]:
        if self._nvml is None:
            self._nvml = self.python(_NVML, str(BUILD))
        assert self._nvml.stdin is not None
        assert self._nvml.stdout is not None
        self._nvml.stdin.write(f"{since} {order}\n")
        self._nvml.stdin.flush()
        gpus: list[dict[str, Any]] = json.loads(self._nvml.stdout.readline())
        for gpu in gpus:
            gpu["held"] = {int(pid): held for pid, held in gpu["held"].items()}
            gpu["had"] = (gpu["had"][0], {int(pid): had for pid, had in gpu["had"][1].items()})
        return gpus

    def shares(self, seconds: float, gpu: int = 0) -> dict[int, float]:
        """Which part of the next `seconds` each process has of a GPU; a whole one is all that one alone gets done."""
        begun, before = self.gpus()[gpu]["had"]
        time.sleep(seconds)
        ended, after = self.gpus()[gpu]["had"]
        return {pid: (had - before[pid]) / (ended - begun) for pid, had in after.items() if pid in before}

    def used(self, gpu: int = 0) -> int:
        return int(self.gpus()[gpu]["used"])

    def wait_until_empty(self, timeout: float = PATIENCE) -> None:
        """Waits until nothing is held on any GPU: what died processes held has come back."""
        end = time.monotonic() + timeout
        while any(gpu["used"] for gpu in self.gpus()):
            assert time.monotonic() < end, f"still held: {self.gpus()}"
            time.sleep(0.001)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """The next line of a process's output that has these words in it."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f'the program ended ({process.wait()}) without saying "{words}"')


@pytest.fixture
def card(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Card]:
    card = Card(getattr(request, "param", "sim:1x5GiB"), tmp_path)
    yield card
    card.close()
