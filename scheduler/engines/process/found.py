"""What is found of local containers: in their folders (keeper.py writes them), and among the host's processes.

All of it blocks: a look takes as long as the host has processes.
"""

import contextlib
import json
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from scheduler import clock, proc
from scheduler.engines import kernel_log
from scheduler.engines.base import Condition, EngineError, Status
from scheduler.engines.process import tree
from scheduler.engines.process.folders import forget
from scheduler.engines.process.keeper import boot_id, is_starting, write_json

CUT_OFF = "It ended with its keeper process, which was killed by a user, or by the host for lack of memory."
RESTARTED = "The host was restarted while it ran, and its keeper with it."


@dataclass(frozen=True, slots=True)
class Running:
    """What running.json says. Start times are in ticks since the boot named `boot`."""

    boot: str
    keeper: int
    keeper_started: int
    pid: int
    pid_started: int
    started_at: float

    def is_kept(self) -> bool:
        return self.boot == boot_id() and tree.is_alive(self.keeper, self.keeper_started)


class Found:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._settling = threading.Lock()

    def folder(self, engine_id: str) -> Path:
        """Of one of ours, before each act on it: a row of the database may name any. Raises EngineError."""
        if engine_id in ("", ".", "..") or "/" in engine_id or "\0" in engine_id:
            raise EngineError("This appliance did not start that container, and leaves it alone.", code="not_ours")
        return self._home / engine_id

    def running(self, engine_id: str) -> Running | None:
        path = self.folder(engine_id) / "running.json"
        try:
            return Running(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except ValueError:  # the power was cut before it had reached the disk
            return Running("", 0, 0, 0, 0, started_at=path.stat().st_mtime)

    def living(self, engine_id: str) -> Running:
        running = self.running(engine_id)
        if running is None or not running.is_kept():
            raise EngineError("The container has ended.", code="not_running")
        return running

    def look(self, launching: frozenset[str]) -> list[Status]:
        children = tree.look()
        # Not by `glob`: since Python 3.12 it finds nothing where the host lets it look at nothing.
        begun = {name for name in os.listdir(self._home) if (self._home / name / "running.json").exists()}
        names = {name for name in begun - launching if not is_starting(self._home / name)}
        found = (self.status(name, children) for name in names)  # a launch is reported at its end
        return [status for status in found if status.condition is not Condition.GONE]

    def status(self, engine_id: str, children: tree.Children | None = None) -> Status:
        # The keeper's end is looked for before the file it leaves: the other way round one could miss both.
        running = self.running(engine_id)
        kept = running is not None and running.is_kept()
        if running is None:
            return Status(engine_id, engine_id, Condition.GONE)
        if ended := self.ended(engine_id, running):
            return ended
        if not kept:
            return self._without_keeper(engine_id, running)
        condition = Condition.PAUSED if tree.is_frozen(running.keeper, children) else Condition.RUNNING
        return Status(engine_id, engine_id, condition, started_at=running.started_at)

    def ended(self, engine_id: str, running: Running) -> Status | None:
        try:
            said = json.loads((self.folder(engine_id) / "ended.json").read_text())
        except (FileNotFoundError, ValueError):  # or it has not reached the disk
            return None
        return Status(
            engine_id, engine_id, Condition.ENDED, said["exit_code"], running.started_at, said["finished_at"],
            said["reason"],
        )  # fmt: skip

    def _without_keeper(self, engine_id: str, running: Running) -> Status:
        """Its keeper was killed, and the kernel has ended the first process; nobody has ended the others.

        They are known by the socket that they were started with: without it they have no GPU memory.
        """
        with self._settling:  # the regular look has a thread of its own
            if self.running(engine_id) is None:
                return Status(engine_id, engine_id, Condition.GONE)  # it was removed meanwhile
            if ended := self.ended(engine_id, running):
                return ended
            here = running.boot == boot_id()
            if here and (left := self._left(engine_id)):
                tree.signal_each(left, signal.SIGKILL)
                return Status(engine_id, engine_id, Condition.RUNNING, started_at=running.started_at)
            reason, at = (kernel_log.of_process(running.keeper) or CUT_OFF, clock.wall()) if here else (RESTARTED, None)
            said: dict[str, object] = {"exit_code": None, "finished_at": at, "reason": reason}
            with contextlib.suppress(OSError):  # a full disk: the next look finds the same
                write_json(self.folder(engine_id) / "ended.json", said)
            return Status(engine_id, engine_id, Condition.ENDED, None, running.started_at, at, reason)

    def _left(self, engine_id: str) -> list[proc.Stat]:
        try:
            launch = json.loads((self.folder(engine_id) / "launch.json").read_text())
        except (FileNotFoundError, ValueError):  # the power was cut while it was written
            return []
        return tree.with_environment(f"GPUSHARE_SOCKET={launch['environment']['GPUSHARE_SOCKET']}")

    def forget(self, engine_id: str) -> None:
        with self._settling:
            forget(self.folder(engine_id))
