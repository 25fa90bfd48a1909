"""Too many events of a container go into sums: each event is a row for ever. When it waited is not left to them."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.core.effects import Granted, Reason, Rejected, Suspended
from scheduler.sessions.live_containers import LiveContainer
from scheduler.sessions.records import EVENTS_A_SECOND, Records
from scheduler.sessions.sums import SumKind, Sums
from tests.support.host import GIB
from tests.support.inprocess.host import InProcess
from tests.support.raw import Raw, beside
from web.history.spans import Event, Waited, trace

KIND = SumKind("c", "g", "rejected", "over_quota")
START = datetime(2026, 1, 1, tzinfo=UTC)
SESSION: Any = SimpleNamespace(pid=1)


def test_the_first_is_recorded_by_itself_and_what_follows_in_one_sum_a_period() -> None:
    reported: list[tuple[SumKind, int, int]] = []
    sums = Sums(10, lambda *sum_: reported.append(sum_))
    assert not sums.count(KIND, 5, now=0)
    for step in range(1000):
        assert sums.count(KIND, step, now=1 + step / 1000)
        sums.tick(1 + step / 1000)
    assert reported == []
    sums.tick(10)
    assert reported == [(KIND, 1000, 999)]
    assert sums.count(KIND, 7, now=11), "it goes on"
    sums.tick(20)
    assert reported[1:] == [(KIND, 1, 7)]
    sums.tick(30)
    assert not sums.count(KIND, 7, now=31), "a first one again"
    assert len(reported) == 2


def test_what_was_counted_is_recorded_when_the_container_ends_and_kinds_are_apart() -> None:
    reported: list[tuple[SumKind, int, int]] = []
    sums = Sums(10, lambda *sum_: reported.append(sum_))
    other = KIND._replace(container="d")
    for kind in (KIND, KIND, other, KIND._replace(reason="shortage"), other):
        sums.count(kind, 1, now=0)
    sums.end("c")
    assert reported == [(KIND, 1, 1)]
    sums.tick(10)
    assert reported[1:] == [(other, 1, 1)]


async def test_a_thousand_calls_above_the_quota_are_a_few_rows(host: InProcess) -> None:
    container = await host.launch("sleep", "600", gpu_memory=GIB)
    raw = await asyncio.to_thread(Raw, host.up.server.socket_dir(str(container.pk)))
    await asyncio.to_thread(raw.hello)
    host.up.broker.records.sums.period = 2.0

    def ask() -> None:
        for serial in range(1000):
            raw.need(2 * GIB, serial)
            assert raw.read() is not None

    await asyncio.to_thread(ask)
    raw.close()
    await asyncio.sleep(5)
    await host.up.store.flush()
    first, *sums = await host.events(container, "rejected")
    assert sum(int(each.detail.removeprefix("over_quota: ").split()[0]) for each in sums) == 999
    assert first.detail == "over_quota"
    assert len(sums) <= 2
    assert {each.bytes for each in sums} == {2 * GIB}


class Book:
    """A container's events as they are written down; `now` goes by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rows: list[Event] = []
        self.recorded: list[str] = []
        self.records = Records(self, lambda: "fair", lambda: self.now)  # type: ignore[arg-type]
        self.live = LiveContainer("c", "c", {"g": GIB})

    def event(
        self, kind: str, container: str, *, gpu: str = "", waited: float = 0.0, detail: str = "", **_: Any
    ) -> None:
        self.rows.append(Event(START + timedelta(seconds=self.now), kind, 1 if gpu else None, None, waited))
        self.recorded.append(f"{kind} {detail}".strip())

    def granted(self, *, was_suspended: bool = False) -> None:
        grant = Granted(1, 1, "c", "g", 1, 0, 1.0 if was_suspended else 0.0, was_suspended)
        self.records.granted(self.live, SESSION, grant)


def test_of_calls_that_are_granted_so_many_a_second_are_rows_and_the_rest_is_a_sum() -> None:
    """One container wrote 7,250 rows in 4 s, a byte each."""
    book, budget = Book(), EVENTS_A_SECOND
    for _ in range(1000):
        book.granted()
    assert book.recorded == ["accepted"] * budget
    book.now = 20.0
    book.records.tick()
    assert book.recorded[budget:] == [f"accepted {1000 - budget} more such calls in 10 s, this the largest."]
    book.granted()
    assert book.recorded[-1] == "accepted"


@pytest.mark.parametrize("seed", range(20))
def test_when_it_waited_is_true_however_many_of_its_waits_are_recorded(seed: int) -> None:
    """By what reports read: from the first call that waits to the last that goes on, granted, rejected or hung up."""
    lots, book, waiting = random.Random(seed), Book(), 0
    truth: list[Waited] = []
    since = START
    for _ in range(400):
        book.now += lots.choice([0.0, 0.001, 0.01])
        at = START + timedelta(seconds=book.now)
        if not waiting or (waiting < 16 and lots.random() < 0.5):
            since = at if not waiting else since
            waiting += 1
            book.records.suspended(book.live, SESSION, Suspended(1, 1, "c", "g", 1), 0.0)
            continue
        waiting -= 1
        if not waiting:
            truth.append(Waited(since, at))
        match lots.randrange(3):
            case 0:
                book.granted(was_suspended=True)
            case 1:
                book.records.hung_up(book.live, Granted(1, 1, "c", "g", 1, 0, 1.0, was_suspended=True))
            case _:
                why = Reason.WAITED_TOO_LONG
                book.records.rejected(book.live, SESSION, Rejected(1, 1, "c", "g", 1, why, 1.0, was_suspended=True))
    end = START + timedelta(seconds=book.now)
    if waiting:
        truth.append(Waited(since, end))
    waits = [span for span in trace(book.rows, end) if isinstance(span, Waited)]
    assert waits == [span for span in truth if span.end > span.start]
    assert len(book.rows) < 300, "of 400"


PHYSICAL = """
import os, sys
from pathlib import Path
from shim.binding import Frame, Type
from tests.support.raw import Raw
for _ in range(20):
    if not os.fork():
        raw = Raw(Path(sys.argv[1]))
        raw.hello()
        raw.send(*[Frame(Type.PHYSICAL, 0, 0, 0, 1)] * 5)
        raw.need(1 << 40)
        raw.read()
        os._exit(0)
    os.wait()
"""


async def test_what_short_processes_say_of_a_full_card_is_counted_by_their_container(host: InProcess) -> None:
    """A row and a line of the log for each process, and as many of these as it likes."""
    container = await host.launch("sleep", "600")
    directory = host.up.server.socket_dir(str(container.pk))
    await asyncio.to_thread(beside(PHYSICAL, directory).communicate)
    live = host.up.broker.live_containers[str(container.pk)]
    await host.eventually(lambda: live.physical == 100)
    await host.up.store.flush()
    assert len(await host.events(container, "card_full")) == 7
