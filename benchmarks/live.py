"""A live scheduler of a benchmark's own, in a process and a home of its own, and containers on it.

with Live(gpus="sim:1x5GiB") as live:
    with live.scheduler("fair"):
        container = live.launch("name", ["/bin/true"], gpu_memory=GIB)
        live.finished([container])

Django is set up for that home: one `Live` in the life of a process, imported before any model. At its end, also when
that is a SIGTERM, nothing is left of what it has started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from tests.support.card import ROOT

if TYPE_CHECKING:
    from web.models import Container

GIB = 1 << 30
T = TypeVar("T")


def until(condition: Callable[[], T], within: float, what: str) -> T:
    """The first true value of `condition`; ends the benchmark after `within` seconds."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {within:.0f} s")
        time.sleep(0.02)
    return value


class Live:
    def __init__(self, gpus: str, engine: str = "process") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpushare-")
        self.home = Path(self._folder.name)
        os.environ.update(GPUSHARE_HOME=str(self.home), GPUSHARE_GPUS=gpus, GPUSHARE_ENGINE=engine)
        os.environ.update(DJANGO_SETTINGS_MODULE="appliance.settings", GPUSHARE_LOG="WARNING")

    def __enter__(self) -> Live:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        subprocess.run([*self._manage(), "migrate", "-v0"], check=True)
        import django

        django.setup()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_containers()
        self._folder.cleanup()

    def end_containers(self) -> None:
        """Local ones, and their keepers, so that there is nobody who would still write."""
        from scheduler import proc
        from scheduler.engines.process import tree

        for path in self.home.glob("processes/*/running.json"):
            running = json.loads(path.read_text())
            keeper = proc.stat(running["keeper"])
            if keeper is not None and keeper.started == running["keeper_started"]:
                tree.signal_each([*tree.descendants(keeper.pid), keeper], signal.SIGKILL)

    def _manage(self) -> list[str]:
        return [sys.executable, str(ROOT / "manage.py")]

    @contextmanager
    def scheduler(
        self, policy: str, stderr: TextIO | None = None, **environment: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        from django.utils import timezone

        from web.models import Node

        begun = timezone.now()
        process = subprocess.Popen(
            [*self._manage(), "runscheduler"],
            env={**os.environ, "GPUSHARE_POLICY": policy, **environment},
            stderr=stderr,
        )
        try:
            until(lambda: Node.objects.filter(seen_at__gte=begun).exists(), 60, "the scheduler's start")
            yield process
        finally:
            process.terminate()
            process.wait()

    def launch(
        self, name: str, command: Sequence[str], gpu_memory: int, image: str = "local", **fields: Any
    ) -> Container:
        """Writes what services write for a launch; does not wait."""
        from django.contrib.auth.models import User

        from web.models import Command, Container

        owner, _ = User.objects.get_or_create(username="benchmark")
        container = Container.objects.create(
            name=name, owner=owner, image=image, command=list(command), gpu_memory=gpu_memory, **fields
        )
        Command.objects.create(kind="launch", container=container, issued_by=owner)
        return container

    def finished(self, containers: Sequence[Container], within: float = 600) -> list[Container]:
        """The containers' rows once all have ended and their last figures are written."""
        from web.models import Container

        def ended() -> list[Any] | None:
            rows = list(Container.objects.filter(pk__in=[c.pk for c in containers]).order_by("created_at"))
            done = all(row.finished_at is not None and row.suspended_since is None for row in rows)
            return rows if done and len(rows) == len(containers) else None

        return until(ended, within, "the end of the containers") or []

    def log(self, container: Container, most: int = -1) -> str:
        """What it has printed, at most so many characters from the beginning."""
        path = self.home / "logs" / f"{container.pk}.log"
        if not path.exists():
            return ""
        with path.open() as log:
            return log.read(most)
