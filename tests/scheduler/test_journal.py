"""What a host keeps while its database is away: numbered for ever upwards, bounded, and never taken for another's."""

from pathlib import Path
from uuid import uuid4

import pytest
from django.utils import timezone

from scheduler.store.journal import RUN, Journal, JournalFull, Numbered
from scheduler.store.node_snapshot import Row
from web.models import AllocationEvent, Container, Node

BUDGET = 1 << 20
NODE: Row = (Node, 1)
UNKNOWN: Row = (Container, str(uuid4()))


def numbered(number: int, kind: str, size: int = 0) -> Numbered:
    return Numbered(number, AllocationEvent(at=timezone.now(), kind=kind, container_id=uuid4(), detail="x" * size))


def kinds(journal: Journal) -> list[str]:
    return [each.event.kind for each in journal.events(100_000)]


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
    journal.keep([numbered(3, "started"), numbered(5, "ended")], {NODE: {"policy": "fair", "driver": "1"}})
    journal.keep([numbered(4, "killed"), numbered(5, "ended")], {NODE: {"driver": "2"}})
    journal.close()
    journal = Journal(tmp_path / "journal", BUDGET)
    assert kinds(journal) == ["started", "killed", "ended"]
    assert journal.rows() == {NODE: {"policy": "fair", "driver": "2"}}
    journal.sent(4, {NODE: {"driver": "1"}, UNKNOWN: {"reason": ""}}, [], True)
    assert kinds(journal) == ["ended"]
    assert journal.rows() == {NODE: {"policy": "fair"}}
    journal.sent(5, {NODE: {"policy": "fair"}}, [], True)
    assert not journal.holds_anything()


def test_full_it_leaves_out_what_happens_all_the_time_and_then_takes_nothing(tmp_path: Path) -> None:
    journal, number = Journal(tmp_path / "journal", BUDGET), 0
    while journal.size() <= BUDGET:
        number += 1
        journal.keep([numbered(number, "accepted", 4000)], {})
    journal.keep([numbered(number + 1, "accepted"), numbered(number + 2, "ended"), numbered(number + 3, "freed")], {})
    assert kinds(journal)[-1] == "ended"
    assert journal.left_out == 2
    while journal.size() <= 1.25 * BUDGET:
        number += 1
        journal.keep([numbered(number + 3, "suspended", 4000)], {})
    with pytest.raises(JournalFull, match="has no room"):
        journal.keep([numbered(number + 4, "ended")], {})
    journal.sent(number, {}, [], True)
    journal.keep([numbered(number + 1000, "accepted")], {})
    assert kinds(journal)[-1] == "accepted"


def test_nobody_but_its_owner_reads_it(tmp_path: Path) -> None:
    Journal(tmp_path / "journal", BUDGET).keep([numbered(1, "ended")], {})
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


def test_damaged_it_is_set_aside_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite3"
    path.write_bytes(b"no database at all" * 1000)
    assert kinds(Journal(path, BUDGET)) == []
    assert (tmp_path / "outbox.damaged.sqlite3").read_bytes().startswith(b"no database")


def test_another_databases_is_set_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "outbox.sqlite3", BUDGET)
    before = journal.id
    journal.keep([numbered(1, "ended")], {})
    aside = journal.set_aside()
    assert not journal.holds_anything()
    assert journal.id != before
    assert kinds(Journal(aside, BUDGET)) == ["ended"]
