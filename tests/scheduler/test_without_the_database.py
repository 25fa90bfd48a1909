"""A host whose database is away decides on and even starts; what happened comes later: in order, and once.

With a PostgreSQL that is killed or says nothing: test_without_the_database_processes.py.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from itertools import pairwise
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, connections

from scheduler import store as stores
from scheduler.store import database as database_module
from scheduler.store import write_behind
from scheduler.store.journal import AsyncJournal, Journal
from tests.support.host import GIB, MIB, query
from tests.support.inprocess.host import InProcess, a_host_inside
from web.audit import verify
from web.models import Container

JOURNAL = "outbox.sqlite3"


@pytest.fixture
async def lab(virtual_time: None, database: None, settings: Any, monkeypatch: Any) -> AsyncIterator[InProcess]:
    """A host with a card of 1 GiB, which keeps what it cannot write, as where the database is a server."""
    monkeypatch.setattr(stores, "_open_journal", lambda: AsyncJournal(settings.GPUSHARE_HOME / JOURNAL, 1 << 20))
    async with a_host_inside(settings, gpus="sim:1x1GiB") as host:
        yield host


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Event:
    """While it is set the scheduler does not reach the database; the test does."""
    away, ask = Event(), database_module._ask

    def asked(query: Callable[..., Any], *arguments: object) -> Any:
        if away.is_set() and query != connections.close_all:
            raise OperationalError("the server is away")
        return ask(query, *arguments)

    monkeypatch.setattr(database_module, "_ask", asked)
    return away


async def holding(host: InProcess, name: str) -> Container:
    container, _ = await host.start_launch(
        "workload", "--bytes", "600MiB", "--hold", "60000", gpu_memory=GIB - 66 * MIB, name=name
    )
    return container


async def two(host: InProcess) -> tuple[Container, Container]:
    """The first has the card, the second waits for it."""
    first = await holding(host, "first")
    await host.says(first, "holding")
    second = await holding(host, "second")
    await host.until(second, "suspended")
    return first, second


def kept(host: InProcess) -> list[str]:
    """The kinds of what the journal has."""
    with closing(sqlite3.connect(f"file:{host.home}/{JOURNAL}?mode=ro", uri=True)) as file:
        return [kind for (kind,) in file.execute("SELECT kind FROM event ORDER BY number")]


def end_program(host: InProcess, container: Container) -> None:
    host.engine.kill_process(host.process(container).pid)


async def events(host: InProcess, container: Container) -> list[str]:
    """The kinds of what happened to it, in the order in which the database got it, its one start aside."""
    found = await host.events(container)
    assert len({(each.kind, each.at, each.bytes, each.gpu_id) for each in found}) == len(found)  # each once
    kinds = [each.kind for each in found if each.kind not in ("accepted", "freed")]
    kinds.remove("started")  # reported by the engine, and so before or after the first call
    # A new scheduler tells once more of a wait that goes on.
    return [kind for before, kind in pairwise(["", *kinds]) if (before, kind) != ("suspended", "suspended")]


async def is_whole(host: InProcess) -> None:
    await host.eventually(lambda: not kept(host))
    assert (await query(verify))[1] == []


async def test_waits_and_ends_come_to_the_database_later_also_of_schedulers_that_never_had_it(
    lab: InProcess, away: Event, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await two(lab)
    away.set()
    for started in (1, 2):
        await lab.crash()
        await lab.start()
        assert caplog.text.count("starts without it") == started
        if started == 1:
            end_program(lab, first)
            await lab.says(second, "holding")  # decided without the database
            await lab.eventually(lambda: "resumed" in kept(lab))
    end_program(lab, second)
    await lab.eventually(lambda: kept(lab).count("ended") == 2)
    away.clear()
    await lab.until(second, "failed")
    assert await events(lab, first) == ["ended"]
    assert await events(lab, second) == ["suspended", "resumed", "ended"]
    third = await holding(lab, "third")  # nothing is held by those that have ended
    await lab.says(third, "holding")
    await is_whole(lab)


async def test_end_that_a_power_cut_makes_this_host_forget_is_reported_once(lab: InProcess, away: Event) -> None:
    """What it knows is not synced where the database has it; and that comes back later than the scheduler."""
    first = await holding(lab, "first")
    await lab.says(first, "holding")
    await lab.until(first, "running")
    journal, on_the_disk = lab.home / JOURNAL, lab.home / "on_the_disk.sqlite3"
    with closing(sqlite3.connect(journal)) as file, closing(sqlite3.connect(on_the_disk)) as copy:
        file.backup(copy)
    end_program(lab, first)
    ended = await lab.until(first, "failed")
    away.set()
    await lab.crash()
    for path in lab.home.glob(f"{JOURNAL}*"):
        path.unlink()
    on_the_disk.rename(journal)
    await lab.start()
    await lab.eventually(lambda: "ended" in kept(lab))
    away.clear()
    await is_whole(lab)
    assert await events(lab, first) == ["ended"]
    assert (await lab.get(first)).finished_at == ended.finished_at


STEPS = {
    "before it keeps what happened": (Journal, "keep", "before"),
    "after it has kept that": (Journal, "keep", "after"),
    "before it sends what is kept": (Journal, "events", "before"),
    "before the database has it": (write_behind, "write_batch", "before"),
    "after the database has it": (write_behind, "write_batch", "after"),
    "before it lets go of what was sent": (Journal, "sent", "before"),
    "after that": (Journal, "sent", "after"),
    "before its first number": (Journal, "next_run", "before"),
    "after its first number": (Journal, "next_run", "after"),
}


def dies(patch: pytest.MonkeyPatch, away: Event, *harmed: Any) -> Event:
    """At this step, after which nothing of it is written any more, in the database or in the journal."""
    dead = Event()

    def harm(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def step(*arguments: Any) -> Any:
            for moment in ("before", "after"):
                if dead.is_set() or (owner, name, moment) == harmed:
                    dead.set()
                    away.set()
                    raise OperationalError("it was killed")
                if moment == "before":
                    result = call(*arguments)
            return result

        patch.setattr(owner, name, step)

    for owner, name in {(owner, name) for owner, name, _ in STEPS.values()}:
        harm(owner, name)
    return dead


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_any_step_it_brings_each_event_once(lab: InProcess, away: Event, step: str) -> None:
    first, second = await two(lab)
    away.set()
    end_program(lab, first)
    await lab.says(second, "holding")
    await lab.eventually(lambda: "resumed" in kept(lab))
    await lab.crash()
    if STEPS[step][1] != "keep":
        away.clear()
    with pytest.MonkeyPatch.context() as patch:
        dead = dies(patch, away, *STEPS[step])
        with suppress(Exception):
            await lab.start()
        await lab.eventually(dead.is_set)
        with suppress(Exception):
            await lab.stop()
        lab._run = None
    away.clear()
    await lab.start()
    await lab.until(second, "running")
    await lab.until(first, "failed")
    await is_whole(lab)
    assert await events(lab, first) == ["ended"]
    assert await events(lab, second) == ["suspended", "resumed"]


async def test_events_whose_commit_was_not_answered_are_not_written_twice(
    lab: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = write_behind.write_batch, []

    def unanswered(*arguments: Any) -> None:
        real(*arguments)
        if arguments[1] and not lost:  # it had events
            lost.append("once")
            raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(write_behind, "write_batch", unanswered)
    first = await holding(lab, "first")
    await lab.says(first, "holding")
    await lab.eventually(lambda: lost)
    assert (await lab.command("kill", first)).outcome == "done"
    assert await events(lab, first) == ["killed", "ended"]
