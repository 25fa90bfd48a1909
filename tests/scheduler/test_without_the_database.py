"""A host whose PostgreSQL is away decides on and even starts; what happened comes later: in order, and once."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from tests.support.appliance import WORKLOAD, until
from tests.support.postgres import BIN, running_postgres
from tests.support.production import Production, end_all
from tests.support.tables import with_tables

pytestmark = [
    pytest.mark.production,
    pytest.mark.skipif(BIN is None, reason="needs the distribution's PostgreSQL"),
]

DYING = ("-m", "tests.support.dying")
JOURNAL, BEHIND = "scheduler.store.journal:Journal", "scheduler.store.write_behind"


class Lab(Production):
    """One host with a card of 1 GiB, on which one container of these fits at a time."""

    def events(self, name: str) -> list[str]:
        """The kinds of what happened to a container, in the order in which the database got it, its one start aside."""
        asked = (
            "SELECT e.kind, e.at, e.bytes, e.gpu_id FROM web_allocationevent e JOIN web_container c "
            "ON c.id = e.container_id WHERE c.name = %s ORDER BY e.id"
        )
        with psycopg.connect(self.postgres.url) as database:
            found = database.execute(asked, (name,)).fetchall()
        assert len(set(found)) == len(found), found  # each once, whatever it is
        kinds = [row[0] for row in found if row[0] not in ("accepted", "freed")]
        kinds.remove("started")  # told by the engine, and so before or after the first call
        # A new scheduler tells once more of a wait that goes on.
        return [kind for before, kind in pairwise(["", *kinds]) if (before, kind) != ("suspended", "suspended")]

    def seen_at(self) -> datetime:
        """When a scheduler gave its last sign of life. Without one for some seconds, launches are refused."""
        with psycopg.connect(self.postgres.url) as database:
            found: datetime = database.execute("SELECT max(seen_at) FROM web_node").fetchall()[0][0]
            return found

    def kept(self) -> list[str]:
        """The kinds of what the journal has."""
        with sqlite3.connect(f"file:{self.home}/outbox.sqlite3?mode=ro", uri=True) as file:
            return [kind for (kind,) in file.execute("SELECT kind FROM event ORDER BY number")]

    def keep(self, model: str, key: int, **fields: str) -> None:
        """What a scheduler that has ended had still to write of a row, added to its journal."""
        with sqlite3.connect(self.home / "outbox.sqlite3") as file:
            key_ = json.dumps([model, key], separators=(",", ":"))
            file.execute("INSERT OR REPLACE INTO row VALUES (?, ?, NULL)", (key_, json.dumps(fields)))

    def holds(self, container: str) -> bool:
        """Whether its program has its memory, by its own words."""
        log = self.home / "logs" / f"{container}.log"
        return log.exists() and "holding" in log.read_text()

    def end_program(self, container: str) -> None:
        """From outside, whoever runs it."""
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                ours = f"/{container}" in path.read_text(errors="replace")
                program = Path(path.parent, "cmdline").read_bytes().split(b"\0")[0]
            except OSError:
                continue
            if ours and program == WORKLOAD.encode():
                os.kill(int(path.parent.name), signal.SIGTERM)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with running_postgres(like=with_tables()) as postgres:
        lab = Lab(tmp_path / "home", postgres, migrated=True)
        try:
            lab.start_scheduler()
            lab.start_web()
            until(lab.ready)
            yield lab
        finally:
            lab.close()
            end_all(lab.home)


def two(lab: Lab) -> tuple[str, str]:
    """The first has the card, the second waits for it."""
    first = lab.hold("first", "600MiB")
    until(lambda: lab.holds(first))
    second = lab.hold("second", "600MiB")
    until(lambda: lab.state(second) == "suspended")
    return first, second


def test_waits_and_ends_without_the_database_come_to_it_later(lab: Lab) -> None:
    first, second = two(lab)
    lab.postgres.kill()
    lab.end_program(first)
    until(lambda: lab.holds(second))  # decided without the database
    until(lambda: "resumed" in lab.kept())
    lab.postgres.start()
    until(lambda: lab.state(first) == "failed")
    until(lambda: lab.state(second) == "running")
    assert lab.events("first") == ["ended"]
    assert lab.events("second") == ["suspended", "resumed"]
    until(lambda: lab.kept() == [])
    assert "whole" in lab.manage("verify_audit")


def test_scheduler_that_is_killed_starts_again_without_the_database(lab: Lab) -> None:
    first, second = two(lab)
    lab.postgres.kill()
    lab.kill("scheduler")
    lab.start_scheduler()
    until(lambda: "starts without it" in lab.said())
    lab.end_program(first)
    until(lambda: lab.holds(second))  # decided by a scheduler that has never had the database
    until(lambda: "resumed" in lab.kept())
    lab.kill("scheduler")
    lab.start_scheduler()  # and by one more
    until(lambda: lab.said().count("starts without it") == 2)
    lab.end_program(second)
    until(lambda: lab.kept().count("ended") == 2)
    lab.postgres.start()
    until(lambda: lab.state(second) == "failed")
    assert lab.events("first") == ["ended"]
    assert lab.events("second") == ["suspended", "resumed", "ended"]
    third = lab.hold("third", "600MiB")  # nothing is held by those that have ended
    until(lambda: lab.holds(third))
    assert "whole" in lab.manage("verify_audit")


def test_end_that_a_power_cut_makes_this_host_forget_is_told_once(lab: Lab) -> None:
    """What it knows is not synced where the database has it; and that comes back later than the scheduler."""
    first = lab.hold("first", "600MiB")
    until(lambda: lab.holds(first) and lab.state(first) == "running")
    journal, on_the_disk = lab.home / "outbox.sqlite3", lab.home / "on_the_disk.sqlite3"
    with closing(sqlite3.connect(journal)) as file, closing(sqlite3.connect(on_the_disk)) as copy:
        file.backup(copy)
    lab.end_program(first)
    until(lambda: lab.state(first) == "failed")
    ended = lab.api("GET", f"containers/{first}/")
    lab.postgres.kill()
    lab.kill("scheduler")
    for path in lab.home.glob("outbox.sqlite3*"):
        path.unlink()
    on_the_disk.rename(journal)
    lab.start_scheduler()
    until(lambda: "starts without it" in lab.said())
    until(lambda: "ended" in lab.kept())
    lab.postgres.start()
    until(lambda: lab.kept() == [])
    assert lab.events("first") == ["ended"]
    assert lab.api("GET", f"containers/{first}/")["finished_at"] == ended["finished_at"]
    assert "whole" in lab.manage("verify_audit")


STEPS = {
    "before it keeps what happened": f"{JOURNAL}.keep:before",
    "after it has kept that": f"{JOURNAL}.keep:after",
    "before it sends what is kept": f"{JOURNAL}.events:before",
    "before the database has it": f"{BEHIND}:_write:before",
    "after the database has it": f"{BEHIND}:_write:after",
    "before it lets go of what was sent": f"{JOURNAL}.sent:before",
    "after that": f"{JOURNAL}.sent:after",
    "before its first number": f"{JOURNAL}.next_run:before",
    "after its first number": f"{JOURNAL}.next_run:after",
}

# In the suite are the two kinds that no other test here has: nobody has it yet, and the file and the database both. For
# the file alone and for a new beginning see test_scheduler_that_is_killed_starts_again_without_the_database.
SHOWN = ("before it keeps what happened", "after the database has it")


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step in SHOWN else pytest.mark.long) for step in STEPS]
)
def test_killed_at_any_step_it_brings_each_event_once(lab: Lab, step: str) -> None:
    first, second = two(lab)
    lab.postgres.kill()
    until(lambda: lab.said().count("trying again") > 0)
    lab.end_program(first)
    until(lambda: lab.holds(second))
    until(lambda: "resumed" in lab.kept())
    lab.kill("scheduler")
    dies_without = ".keep:" in STEPS[step]
    if not dies_without:
        lab.postgres.start()
    lab.start_scheduler(*DYING, STEPS[step])
    until(lambda: lab.has_ended("scheduler"))
    lab.kill("scheduler")
    if dies_without:
        lab.postgres.start()
    lab.start_scheduler()
    until(lambda: lab.state(second) == "running")
    until(lambda: lab.state(first) == "failed")
    until(lambda: lab.kept() == [])
    assert lab.events("first") == ["ended"]
    assert lab.events("second") == ["suspended", "resumed"]
    assert "whole" in lab.manage("verify_audit")


def test_events_whose_commit_was_not_answered_are_not_written_twice(lab: Lab) -> None:
    lab.stop("scheduler")
    before = lab.seen_at()
    lab.start_scheduler(*DYING, f"{BEHIND}:_write:lost")
    until(lambda: lab.seen_at() > before)
    first = lab.hold("first", "600MiB")
    until(lambda: "closed the connection unexpectedly" in lab.said())
    until(lambda: lab.holds(first))
    lab.api("POST", f"containers/{first}/kill/", {})
    assert lab.events("first") == ["killed", "ended"]


def test_container_whose_time_is_over_is_ended_while_the_database_says_nothing(lab: Lab) -> None:
    """It takes connections and answers none: nothing fails, everything would wait."""
    body = {"name": "short", "image": "local", "command": ["sleep", "3600"], "ttl_seconds": 15}
    short = lab.launch(body)
    until(lambda: lab.state(short) == "running")
    lab.postgres.freeze()
    try:
        until(lambda: "killed" in lab.kept())
        until(lambda: "ended" in lab.kept())
    finally:
        lab.postgres.thaw()
    until(lambda: lab.state(short) == "killed")
    assert lab.events("short") == ["warned", "killed", "ended"]


def test_what_was_kept_for_another_database_is_not_sent_to_this_one(lab: Lab) -> None:
    first, second = two(lab)
    lab.postgres.kill()
    lab.end_program(first)
    until(lambda: "resumed" in lab.kept())
    lab.kill("scheduler")
    lab.end_program(second)
    lab.postgres.start()
    lab.keep("Node", 1, placer="of the first database")  # each database has a node of this key
    other = lab.postgres.database("other")
    lab.manage("migrate", "-v0", DATABASE_URL=other)
    lab.start_scheduler(DATABASE_URL=other)
    until(lambda: "of another database" in lab.said())
    with psycopg.connect(other) as database:
        until(lambda: database.execute("SELECT count(*) FROM web_node WHERE outbox <> ''").fetchone() == (1,))
        # The first thing that a start writes is what was kept: after a sign of life it is written, or never.
        until(lambda: database.execute("SELECT count(*) FROM web_node WHERE seen_at > started_at").fetchone() == (1,))
        assert database.execute("SELECT count(*) FROM web_allocationevent").fetchone() == (0,)
        assert database.execute("SELECT placer FROM web_node").fetchone() == ("",)
    (aside,) = (path for path in lab.home.glob("outbox.*-*.sqlite3"))
    with sqlite3.connect(aside) as file:
        assert ("resumed",) in file.execute("SELECT kind FROM event").fetchall()


def test_scheduler_whose_name_another_has_when_the_database_is_back_ends_and_writes_nothing(lab: Lab) -> None:
    first, second = two(lab)
    lab.kill("scheduler")
    with psycopg.connect(lab.postgres.url) as database:  # as another host does that lives on
        database.execute("UPDATE web_node SET holder = 'another', seen_at = now() + interval '1 hour'")
    lab.postgres.kill()
    lab.start_scheduler()
    until(lambda: "starts without it" in lab.said())
    lab.end_program(first)
    until(lambda: lab.holds(second))  # alone, it decides as its own
    until(lambda: "resumed" in lab.kept())
    lab.postgres.start()
    until(lambda: lab.has_ended("scheduler"))
    assert "Another scheduler works under the node name" in lab.said()
    assert lab.events("second") == ["suspended"]
    assert "resumed" in lab.kept()
    lab.kill("scheduler")


def test_scheduler_that_lived_without_the_database_loses_its_name_to_who_came_first(lab: Lab) -> None:
    first, _ = two(lab)
    lab.postgres.kill()
    lab.end_program(first)
    until(lambda: "resumed" in lab.kept())
    lab.process("scheduler").send_signal(signal.SIGSTOP)
    lab.postgres.start()
    with psycopg.connect(lab.postgres.url) as database:
        database.execute("UPDATE web_node SET holder = 'another'")
    lab.process("scheduler").send_signal(signal.SIGCONT)
    until(lambda: lab.has_ended("scheduler"))
    assert "another one took its node's name" in lab.said()
    assert lab.events("second") == ["suspended"]
    lab.kill("scheduler")


def test_clock_that_differs_from_the_databases_is_told_of(lab: Lab) -> None:
    lab.stop("scheduler")
    with psycopg.connect(lab.postgres.url) as database:  # the server's clock, as everybody sees it who asks for it
        database.execute("CREATE SCHEMA other")
        database.execute(
            "CREATE FUNCTION other.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
            "$$SELECT pg_catalog.clock_timestamp() + interval '2 hours'$$"
        )
        database.execute("ALTER ROLE gpushare SET search_path = other, pg_catalog, public")
    lab.start_scheduler()

    def told() -> str:
        items = lab.api("GET", "attention/")["results"]
        return str(next((item["message"] for item in items if item["kind"] == "clock_wrong"), ""))

    until(told)
    assert "s behind the database's" in told()
    assert abs(float(told().split(" is ")[1].split()[0]) - 7200) < 30
