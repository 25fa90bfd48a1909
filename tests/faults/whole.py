"""The whole appliance as `make up` starts it: a parent, the web and the scheduler. For harm to any of them."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

from scheduler.engines.process import tree
from tests.faults.ground import Ground
from tests.faults.world import ROOT, World, retried
from tests.support.eventually import PATIENCE
from tests.support.ports import free_port
from web.models import Node


class Whole(World):
    """When its parent dies it is started again, as a service manager would."""

    def __init__(self, ground: Ground, **environment: str) -> None:
        port = free_port()
        super().__init__(ground, PORT=str(port), **environment)
        self.url = f"http://127.0.0.1:{port}"
        self.longest_silence = 0.0  # seconds between two signs of life of a scheduler; a second without any harm
        self._parent: subprocess.Popen[bytes] | None = None

    def start(self, traced: str = "") -> None:
        self.starts += 1
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.troubled", "up"],
            cwd=ROOT,
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
        )
        threading.Thread(target=self._start_again, args=(self._parent,), daemon=True).start()
        if self.starts == 1:
            threading.Thread(target=self._watch, daemon=True).start()

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            try:
                return httpx.get(f"{self.url}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        self.until(ready, "it is never ready")

    def _start_again(self, parent: subprocess.Popen[bytes]) -> None:
        parent.wait()
        if not self._ending:
            self.start()

    def _watch(self) -> None:
        seen, since = None, time.monotonic()  # not by its own clock, which a storm puts wrong
        while not self._ending:
            now = retried(lambda: Node.objects.values_list("seen_at", flat=True).first())
            if now != seen:
                self.longest_silence = max(self.longest_silence, time.monotonic() - since if seen else 0.0)
                seen, since = now, time.monotonic()
            time.sleep(0.2)

    def stop(self) -> None:
        self._ending = True
        assert self._parent is not None
        self._parent.send_signal(signal.SIGTERM)
        self._parent.wait(PATIENCE)

    def pids(self, kind: str) -> list[int]:
        """Of "parent", "web" or "scheduler"; none while it is away."""
        assert self._parent is not None
        if kind == "parent":
            return [self._parent.pid]
        children = [each.pid for each in tree.descendants(self._parent.pid) if each.parent == self._parent.pid]
        return [pid for pid in children if _name(pid) == kind]

    @property
    def web_is(self) -> str:
        """Which user's rights the web process has: a user's number."""
        (pid,) = self.pids("web")
        status = Path(f"/proc/{pid}/status").read_text()
        return next(line.split()[1] for line in status.splitlines() if line.startswith("Uid:"))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
