"""What a host keeps while its database is away: numbered for ever upwards, bounded, and never taken for another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.store.journal import RUN, Journal, JournalFull

BUDGET = 1 << 20


def told(kind: str, size: int = 0) -> dict[str, Any]:
    return {"kind": kind, "detail": "x" * size}


def kinds(journal: Journal) -> list[str]:
    return [fields["kind"] for _, fields in journal.events(100_000)]


def test_numbers_of_a_new_run_are_higher_than_all_before(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BUDGET)
    first = journal.next_run()
    journal.close()
    again = Journal(path, BUDGET)
    assert again.next_run() == first + RUN
    # A host that lost its file goes on above what the database has.
    assert Journal(tmp_path / "new", BUDGET).next_run(above=7 * RUN + 5) == 8 * RUN


def test_what_is_kept_outlives_the_process_in_its_order_and_goes_when_it_is_sent(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", BUDGET)
    journal.keep([(3, told("started")), (5, told("ended"))], {"row": {"a": 1, "b": 2}})
    journal.keep([(4, told("killed")), (5, told("ended"))], {"row": {"b": 3}})
    journal.close()
    journal = Journal(tmp_path / "journal", BUDGET)
    assert kinds(journal) == ["started", "killed", "ended"]
    assert journal.rows() == {"row": {"a": 1, "b": 3}}
    journal.sent(4)
    assert kinds(journal) == ["ended"]
    assert journal.rows_sent({"row": ["b"], "unknown": ["c"]})
    assert journal.rows() == {"row": {"a": 1}}
    assert not journal.rows_sent({"row": ["a"]})


def test_full_it_leaves_out_what_happens_all_the_time_and_then_takes_nothing(tmp_path: Path) -> None:
    journal, number = Journal(tmp_path / "journal", BUDGET), 0
    while journal.size() <= BUDGET:
        number += 1
        journal.keep([(number, told("accepted", 4000))], {})
    journal.keep([(number + 1, told("accepted")), (number + 2, told("ended")), (number + 3, told("freed"))], {})
    assert kinds(journal)[-1] == "ended"
    assert journal.left_out == 2
    while journal.size() <= 1.25 * BUDGET:
        number += 1
        journal.keep([(number + 3, told("suspended", 4000))], {})
    with pytest.raises(JournalFull, match="GPUSHARE_OUTBOX"):
        journal.keep([(number + 4, told("ended"))], {})
    journal.sent(number)
    journal.keep([(number + 1000, told("accepted"))], {})
    assert kinds(journal)[-1] == "accepted"


def test_nobody_but_its_owner_reads_it(tmp_path: Path) -> None:
    Journal(tmp_path / "journal", BUDGET).keep([(1, told("ended"))], {})
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


def test_damaged_it_is_set_aside_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite3"
    path.write_bytes(b"no database at all" * 1000)
    assert kinds(Journal(path, BUDGET)) == []
    assert (tmp_path / "outbox.damaged.sqlite3").read_bytes().startswith(b"no database")


def test_another_databases_is_set_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "outbox.sqlite3", BUDGET)
    before = journal.id
    journal.keep([(1, told("ended"))], {})
    aside = journal.set_aside()
    assert not journal.holds_anything()
    assert journal.id != before
    assert kinds(Journal(aside, BUDGET)) == ["ended"]
