"""Who kills, and what else goes wrong, at random, while a storm rages."""

import contextlib
import errno
import os
import random
import resource
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from django.conf import settings

from tests.faults.kinds import SERVERS, TROUBLES
from tests.faults.whole import Whole
from tests.faults.world import MIB, retried
from web.models import Command, Gpu

WEIGHTS = {"scheduler": 4, "web": 2, "parent": 1, "program": 4, "keeper": 2}
LASTS = (0.5, 3.0)  # seconds; a trouble's
STARVED, RUNS = 0.3, 0.05  # seconds in which others have the processors, and in which they do not


def _put_back() -> None:
    """An admin puts cards back in service that have fallen off the bus."""
    for card in Gpu.objects.exclude(drained_at=None):
        Command.objects.create(kind=Command.Kind.UNDRAIN, node=card.node, arguments={"gpu": card.uuid})


class Reaper:
    """Does what `kinds` say, at random, and remembers whose container it harmed."""

    def __init__(self, world: Whole, kinds: list[str], chance: random.Random) -> None:
        self.world, self._random = world, chance
        self.killed: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()
        self.harmed: set[str] = set()  # containers' ids
        self.impossible: set[str] = set()  # troubles that this machine lets nobody make
        # Each in a thread of its own: things die while others go wrong.
        kills = [kind for kind in kinds for _ in range(WEIGHTS.get(kind, 0))]
        self.parts = [part for part in (kills, [kind for kind in kinds if kind not in kills]) if part]

    def rage(self, kinds: list[str], until: float) -> None:
        chance = random.Random(self._random.random())
        while time.monotonic() < until:
            time.sleep(chance.uniform(0.2, 1.5))
            self.strike(chance.choice(kinds))

    def strike(self, kind: str) -> None:
        if kind in TROUBLES:
            self._trouble(kind)
        elif kind in SERVERS:
            self._server(kind)
        elif kind in ("program", "keeper"):
            found = list(self._of_containers(kind))
            if found:
                pid, container = self._random.choice(found)
                self.harmed.add(container)
                self._kill(pid, kind)
        elif kind != "parent" or self.world.pids("web"):  # else it has just been started, and would never come to be
            for pid in self.world.pids(kind):
                self._kill(pid, kind)

    def _kill(self, pid: int, kind: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.killed[kind] += 1

    def _server(self, kind: str) -> None:
        ground = self.world.ground
        if kind == "dockerd" and ground.dockerd is not None:
            # A dockerd that starts again ends what its containers had running: it is not configured to keep them.
            self.harmed |= {container for _, container in self._of_containers("keeper")}
            ground.dockerd.kill()
            self.harmed |= self.world.living()
            time.sleep(self._random.uniform(*LASTS))
            ground.dockerd.start()
        elif kind == "postgres" and ground.postgres is not None:
            ground.postgres.kill()
            time.sleep(self._random.uniform(*LASTS))
            ground.postgres.start()
        elif kind == "redis" and ground.redis is not None:
            ground.redis.stop()
            time.sleep(self._random.uniform(*LASTS))
            ground.redis.start()
        else:
            return
        self.killed[kind] += 1

    def _trouble(self, kind: str) -> None:
        troubles: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "locked": self._locked,
            "full": self._full,
            "descriptors": lambda: self._limited(resource.RLIMIT_NOFILE, _open_now, 3),
            "memory": lambda: self._limited(resource.RLIMIT_AS, _mapped_now, 2 * MIB),
            "starved": self._starved,
            "clock": lambda: self.world.trouble("clock", str(self._random.choice([-7200, -90, 90, 7200]))),
        }
        try:
            with troubles.get(kind, lambda: self.world.trouble(kind))():
                time.sleep(self._random.uniform(*LASTS))
        except PermissionError:
            self.impossible.add(kind)
        else:
            self.troubles[kind] += 1
        if kind == "card":
            retried(_put_back)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Somebody writes for as long as this takes."""
        if self.world.ground.postgres is not None:
            import psycopg

            connection = None
            with contextlib.suppress(psycopg.OperationalError):  # it was killed just now
                connection = psycopg.connect(os.environ["DATABASE_URL"])
                connection.execute("LOCK TABLE web_container, web_command, web_claim IN EXCLUSIVE MODE")
            yield
            if connection is not None:
                connection.close()
            return
        database = sqlite3.connect(settings.DATABASES["default"]["NAME"], isolation_level=None, timeout=20)
        try:
            database.execute("BEGIN IMMEDIATE")
            yield
            database.execute("ROLLBACK")
        finally:
            database.close()

    @contextmanager
    def _full(self) -> Iterator[None]:
        """GPUSHARE_HOME has no room left. Raises PermissionError where it is no small file system of its own."""
        if not self.world.ground.small:
            raise PermissionError
        ballast = self.world.home / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for size in (MIB, 1 << 12):  # the last page, too
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        yield
        ballast.unlink()

    @contextmanager
    def _limited(self, what: int, now: Callable[[int], int], more: int) -> Iterator[None]:
        """The scheduler and the web get no more of this than they have, but `more`."""
        before = {}
        for pid in [*self.world.pids("scheduler"), *self.world.pids("web")]:
            # It has just died; or it is the web process, another user's, and root's rights here are not all of them.
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
                soft, hard = resource.prlimit(pid, what)
                resource.prlimit(pid, what, (now(pid) + more, hard))
                before[pid] = soft, hard
        if not before:
            raise PermissionError
        yield
        for pid, limits in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, what, limits)

    @contextmanager
    def _starved(self) -> Iterator[None]:
        """A machine so busy that whatever the scheduler and the web do comes late, and late again."""
        over = threading.Event()

        def hold_up() -> None:
            while not over.is_set():
                held = [*self.world.pids("scheduler"), *self.world.pids("web")]
                for what, seconds in ((signal.SIGSTOP, STARVED), (signal.SIGCONT, RUNS)):
                    for pid in held:
                        with contextlib.suppress(ProcessLookupError):  # it has been killed
                            os.kill(pid, what)
                    time.sleep(seconds)

        others = threading.Thread(target=hold_up)
        others.start()
        yield
        over.set()
        others.join()

    def _of_containers(self, kind: str) -> Iterator[tuple[int, str]]:
        """Processes and the containers that they belong to."""
        for container, keeper, programs in self.world.containers_processes():
            for pid in [keeper] if kind == "keeper" else programs:
                yield pid, container


def _open_now(pid: int) -> int:
    return max(map(int, os.listdir(f"/proc/{pid}/fd")), default=-1) + 1  # none of one that has just died


def _mapped_now(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
