"""Who does not go on: stopped by a signal or a debugger, or locked or moved out by the card's driver, as that says."""

import os
import subprocess
import sys
from pathlib import Path

from scheduler.card.helper import WORKER, State, is_stopped
from tests.support.card import BUILD


class Driver:
    """Asks by a worker of its own, as the scheduler's card helper does. `card`: the simulated card's file."""

    def __init__(self, card: Path) -> None:
        env = {**os.environ, "GPUSHARE_SIM": str(card), "LD_LIBRARY_PATH": str(BUILD / "sim")}
        self._worker = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WORKER)], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        ready = self._said()
        assert ready.startswith("ready"), ready

    def state(self, pid: int) -> State:
        """UNKNOWN: it does not use the card, or has ended."""
        assert self._worker.stdin is not None
        self._worker.stdin.write(f"state {pid}\n")
        self._worker.stdin.flush()
        _, state, _ = self._said().split()
        return State(int(state))

    def goes_on(self, pid: int) -> bool:
        return not is_stopped(pid) and self.state(pid) in (State.RUNNING, State.UNKNOWN)

    def close(self) -> None:
        self._worker.communicate()

    def _said(self) -> str:
        assert self._worker.stdout is not None
        return self._worker.stdout.readline()
