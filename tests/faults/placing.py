"""A Swarm of files, for two schedulers on one machine: what the first is asked for it hands over, the second takes.

It stands where Docker and its Swarm do, and nothing else does: the records, both schedulers, the programs and the way
by which a node makes a launch its own (`Volumes.take`) are the real ones. In the folder FAULTS_SWARM:

    hosts       what `Placer.hosts` tells
    ID          an order; its `stage` and what is `said` of it
    hold        while it is there nothing is given to a host; what the Swarm says of that
    spared      the names of hosts that are to get nothing new
    fail CALL   that call fails, as the engine is `away` or else; then there is also `failed`

An order's name may tell what goes wrong with it: see `Taking`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError

from scheduler.engines.base import EngineAway, EngineError
from scheduler.engines.placer import Host, Order, Stage, Standing
from web.errors import Problem
from web.models import Container
from web.services.placement.placement_ticket import PlacementTicket

SWARM = Path(os.environ.get("FAULTS_SWARM", "/nonexistent"))
SECOND = "second"  # the node that runs what is handed over
NAME, WHOLE = "swarm", "swarm 1"
LOOKS = 0.1  # seconds


@contextlib.contextmanager
def changed(folder: Path, id_: str) -> Iterator[dict[str, Any]]:
    """An order, empty if it is not there; as it is left it is kept, and an empty one is gone. Nobody else has it."""
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / id_
        order = json.loads(path.read_text()) if path.exists() else {}
        yield order
        if order:
            path.with_name(".new").write_text(json.dumps(order, default=str))
            path.with_name(".new").rename(path)
        else:
            path.unlink(missing_ok=True)


def orders(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in folder.glob("*-*"):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = json.loads(path.read_text())
    return found


def spared(folder: Path) -> list[str]:
    path = folder / "spared"
    return list(json.loads(path.read_text())) if path.exists() else []


class Files:
    """Placer."""

    name, whole = NAME, WHOLE

    async def hosts(self) -> list[Host]:
        hosts, rests = json.loads((SWARM / "hosts").read_text()), spared(SWARM)
        return [
            Host(each["name"], {int(card): size for card, size in each["declared"].items()}, {}, each["labels"],
                 each["there"] and each["name"] not in rests) for each in hosts
        ]  # fmt: skip

    async def submit(self, order: Order) -> None:
        with changed(SWARM, order.id) as found:
            if not found:
                found.update(asdict(order), stage=Stage.WAITS, said="")

    async def spare(self, hosts: Mapping[str, bool]) -> None:
        (SWARM / "spared.new").write_text(json.dumps([name for name, rests in hosts.items() if rests]))
        (SWARM / "spared.new").rename(SWARM / "spared")

    async def standing(self) -> dict[str, Standing]:
        _fail("standing")
        return {id_: Standing(Stage(each["stage"]), each["said"]) for id_, each in orders(SWARM).items()}

    async def take_back(self, id_: str) -> None:
        _fail("take_back")
        with changed(SWARM, id_) as found:
            found.clear()


def _fail(call: str) -> None:
    path = SWARM / f"fail {call}"
    if path.exists():
        error = EngineAway if path.read_text() == "away" else EngineError
        path.with_name("failed").touch()
        raise error("It is made to fail.")


class Taking:
    """What Docker does on the node that an order has come to, and the Swarm as it looks at that.

    "fails": it cannot be begun. "unmounted": its volume is mounted, and no more. "twice": it is begun once more.
    """

    def __init__(self, scheduler: Any) -> None:
        self._store, self._launcher, self._plugin = scheduler.store, scheduler.launcher, scheduler.plugin
        self._containers = scheduler.containers

    async def run(self) -> None:
        while True:
            for id_, order in orders(SWARM).items():
                try:
                    await self._look(id_, order)
                except (EngineError, DatabaseError, OSError):  # later
                    continue
                except Problem as problem:
                    self._say(id_, Stage.OVER, problem.message)
            await asyncio.sleep(LOOKS)

    async def _look(self, id_: str, order: Mapping[str, Any]) -> None:
        hold = SWARM / "hold"
        if order["stage"] == Stage.GIVEN:
            await self._go_on(id_, order)
        elif order["stage"] == Stage.WAITS and hold.exists():
            self._say(id_, Stage.WAITS, hold.read_text())
        elif order["stage"] == Stage.WAITS and order["name"] == "fails":
            self._say(id_, Stage.OVER, "no such image")
        elif order["stage"] == Stage.WAITS and SECOND not in spared(SWARM):
            self._say(id_, Stage.GIVEN, "")

    async def _go_on(self, id_: str, order: Mapping[str, Any]) -> None:
        ticket = PlacementTicket(UUID(id_), order["quota"], tuple(order["cards"]), order["key"])
        row = await self._store.ask(lambda: Container.objects.get(pk=id_))
        if row.finished_at is not None:
            self._say(id_, Stage.OVER, order["said"])
        elif row.started_at is None:
            row = await self._store.volumes.accept(f"of-{id_}", f"mounted-{id_}", ticket)
            if order["name"] == "unmounted":
                self._say(id_, Stage.GIVEN, "its volume could not be mounted")
                self._plugin.mounts._begin(row, ())
                self._plugin.mounts._never_started(self._plugin.mounts._known[row.mount])
            else:
                await self._launcher.launch(row)
        elif order["name"] == "twice" and "refused" not in order:
            with contextlib.suppress(Problem):
                await self._store.volumes.accept(f"of-{id_}", "mounted-again", ticket)
                raise AssertionError("one launch was begun twice")
            with changed(SWARM, id_) as found:
                found.update({"refused": True} if found else {})

    def _say(self, id_: str, stage: Stage, said: str) -> None:
        with changed(SWARM, id_) as found:
            if found:
                found.update(stage=stage, said=said)


def of_files() -> None:
    """Where there is such a Swarm, schedulers speak for it, or run what it gives to the second node."""
    from scheduler.engines.process.engine import ProcessEngine
    from scheduler.worker import Scheduler

    speaks = property(lambda _: Files() if settings.GPUSHARE_NODE != SECOND and SWARM.exists() else None)
    ProcessEngine.placer = speaks  # type: ignore[assignment]
    together = Scheduler.put_together

    def put_together(self: Scheduler, policy: str) -> None:
        together(self, policy)
        if settings.GPUSHARE_NODE == SECOND:
            run, taking = self.plugin.run, Taking(self)

            async def both() -> None:
                await asyncio.gather(run(), taking.run())

            self.plugin.run = both  # type: ignore[method-assign]

    Scheduler.put_together = put_together  # type: ignore[method-assign]
