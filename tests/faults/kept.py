"""Plays in which PostgreSQL is away, while containers wait, end, are ended by time, and take memory; and comes back.

What happens meanwhile is kept on the host (scheduler/store/journal.py). None of these asks the database anything then.
"""

import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from django.db import connection
from django.db.models import F
from django.utils import timezone

from scheduler.store.journal import NAME
from tests.faults.plays import _BY_HAND, _KILLED, _LIFE, HOLD, POLITE
from tests.faults.scene import Scene
from tests.faults.world import GIB
from web.models import Node

_TAKES = "sleep 600; exec {workload} --bytes 256MiB --check 1MiB --hold 600"  # as soon as its sleep is ended
_FROM_OUTSIDE = ("failed", (137,), "", _LIFE, 1)


def _in_time(seconds: int) -> tuple[str, tuple[int, ...], str, dict[str, int], int]:
    return "killed", (137, 143), f"Its time limit of {seconds} s was reached.", _KILLED, 1


class Kept(Scene):
    """It is killed, and so is the scheduler, which starts without it; and it takes connections and answers nothing."""

    expected = {
        "holder": (_FROM_OUTSIDE,),
        "waiter": (_BY_HAND,),
        "leaver": (("failed", (3,), "", _LIFE, 1),),
        "done": (("exited", (0,), "", _LIFE, 1),),
        "taker": (_BY_HAND,),
        "late": (_in_time(2),),
        "later": (_in_time(1),),
        "meanwhile": (_FROM_OUTSIDE,),
    }

    def play(self) -> None:
        world, postgres = self.world, self.world.ground.postgres
        assert postgres is not None
        self._launched({
            "holder": self._begin("holder", HOLD, gpu_memory=4 * GIB),
            "leaver": self._begin("leaver", "sleep 600; exit 3"),
            "done": self._begin("done", "sleep 600; exit 0", remove_when_done=True),
            "taker": self._begin("taker", _TAKES, gpu_memory=GIB // 2),
            "meanwhile": self._begin("meanwhile", "exec sleep 600"),
        })  # fmt: skip
        self._says("holder", "holding")
        self._launched({
            "waiter": self._begin("waiter", HOLD, gpu_memory=4 * GIB),
            "late": self._begin("late", POLITE, ttl_seconds=2.0),
        })  # fmt: skip
        world.until_state(self.made["waiter"], "suspended")
        with self._away(postgres.kill, postgres.start):
            self._end("holder", b"workload")
            for name in ("leaver", "taker"):
                self._end(name, b"sleep", signal.SIGTERM)
            self._says("waiter", "holding")  # that was decided without it
            self._says("taker", "holding")
            world.until(lambda: str(self.made["late"].pk) not in self._living(), "its time is never over")
            world.interrupt(lambda: self._end("meanwhile", b"sleep"))
            self._end("done", b"sleep", signal.SIGTERM)
            ended = {str(self.made[name].pk) for name in ("holder", "leaver", "meanwhile", "done")}
            world.until(lambda: ended <= _ended(world.home), "what happened is not kept")
        for name in ("holder", "leaver", "done", "late", "meanwhile"):
            world.until(lambda: world.get(self.made[name]).finished_at, f"nobody hears that {name} ended")  # noqa: B023
        world.until(lambda: not kept(world.home), "it is not sent")
        self._launch("later", POLITE, ttl_seconds=1.0)
        with self._away(postgres.freeze, postgres.thaw):
            world.until(lambda: str(self.made["later"].pk) not in self._living(), "its time is never over")
        for kill in [world.begin("kill", self.made[name], grace=0.0) for name in ("waiter", "taker")]:
            self._done(world.outcome(kill))
        removals = [world.begin("remove", container) for name, container in self.made.items() if name != "done"]
        for removal in removals:
            self._done(world.outcome(removal))
        self._all_over()

    def _living(self) -> set[str]:
        return {id_ for id_, _, programs in self.world.containers_processes() if programs}

    def _end(self, name: str, program: bytes, number: int = signal.SIGKILL) -> None:
        """This program of it, by nobody's scheduler."""
        for id_, _, programs in self.world.containers_processes():
            for pid in programs if id_ == str(self.made[name].pk) else ():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if (
                        Path(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()).name
                        == program.decode()
                    ):
                        os.kill(pid, number)

    @contextlib.contextmanager
    def _away(self, goes: Callable[[], None], comes: Callable[[], None]) -> Iterator[None]:
        goes()
        try:
            yield
        finally:
            comes()
            connection.close()  # ours was cut off, too


class Aside(Scene):
    """What is kept is of another database, is damaged, has no room left; and the node's name becomes another's."""

    expected = {"holder": (_BY_HAND,), "late": (_in_time(1),)}

    def play(self) -> None:
        world = self.world
        self._launch("holder", HOLD, gpu_memory=4 * GIB)
        self._says("holder", "holding")
        world.until(lambda: not kept(world.home), "it is not sent")
        world.interrupt(self._of_another)
        world.until(self._aside, "what is of another database is not set aside")
        self._launch("late", POLITE, ttl_seconds=1.0)
        world.until_state(self.made["late"], "killed")
        world.until(lambda: not kept(world.home), "it is not sent")
        before = timezone.now()
        world.interrupt(self._damage)
        world.until(lambda: (world.home / "outbox.damaged.sqlite3").exists(), "a damaged file is not set aside")
        # Another scheduler had its name, and fell silent.
        long_ago = timezone.now() - timedelta(hours=1)
        up = Node.objects.filter(started_at__gt=before, seen_at__gt=F("started_at"))
        world.until(up.exists, "it does not start")
        Node.objects.update(holder="another", seen_at=long_ago, started_at=long_ago)
        world.until(lambda: not Node.objects.filter(holder="another").exists(), "nobody takes the name")
        self._done(world.do("kill", self.made["holder"], grace=0.0))
        self._removed()

    def _aside(self) -> list[Path]:
        return list(self.world.home.glob("outbox.*-*.sqlite3"))

    def _of_another(self) -> None:
        Node.objects.update(outbox="of another host")

    def _damage(self) -> None:
        path = self.world.home / NAME
        for more in ("-wal", "-shm"):
            Path(f"{path}{more}").unlink(missing_ok=True)
        path.write_bytes(b"no database, but as long as one is at least: " * 200)


def kept(home: Path) -> list[tuple[str, str]]:
    """What this host's journal has: each event's kind and its container."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{home}/{NAME}?mode=ro", uri=True)) as file:
            events = file.execute("SELECT kind, fields FROM event ORDER BY number").fetchall()
    except sqlite3.Error:  # it is being made, or changed
        return [("?", "")]
    return [(kind, json.loads(fields)["container_id"]) for kind, fields in events]


def _ended(home: Path) -> set[str]:
    return {container for kind, container in kept(home) if kind == "ended"}
