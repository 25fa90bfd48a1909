"""A PostgreSQL that is killed, says nothing, or is another one; the rest is in test_without_the_database.py."""

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
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
        kinds.remove("started")  # reported by the engine, and so before or after the first call
        # A new scheduler tells once more of a wait that goes on.
        return [kind for before, kind in pairwise(["", *kinds]) if (before, kind) != ("suspended", "suspended")]

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


# The two kinds of its steps: nobody has it yet, and the file and the database both. All of them are in
# test_without_the_database.py.
@pytest.mark.parametrize(
    "step", ["scheduler.store.journal:Journal.keep:before", "scheduler.store.write_behind:write_batch:after"]
)
def test_killed_at_a_step_it_brings_each_event_once(lab: Lab, step: str) -> None:
    first, second = two(lab)
    lab.postgres.kill()
    until(lambda: lab.said().count("trying again") > 0)
    lab.end_program(first)
    until(lambda: lab.holds(second))
    until(lambda: "resumed" in lab.kept())
    lab.kill("scheduler")
    dies_without = ".keep:" in step
    if not dies_without:
        lab.postgres.start()
    lab.start_scheduler(*DYING, step)
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


def test_clock_that_differs_from_the_databases_is_reported(lab: Lab) -> None:
    lab.stop("scheduler")
    with psycopg.connect(lab.postgres.url) as database:  # the server's clock, as everybody sees it who asks for it
        database.execute("CREATE SCHEMA other")
        database.execute(
            "CREATE FUNCTION other.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
            "$$SELECT pg_catalog.clock_timestamp() + interval '2 hours'$$"
        )
        database.execute("ALTER ROLE gpushare SET search_path = other, pg_catalog, public")
    lab.start_scheduler()

    def message() -> str:
        items = lab.api("GET", "attention/")["results"]
        return str(next((item["message"] for item in items if item["kind"] == "clock_wrong"), ""))

    until(message)
    assert "s behind the database's" in message()
    assert abs(float(message().split(" is ")[1].split()[0]) - 7200) < 30
