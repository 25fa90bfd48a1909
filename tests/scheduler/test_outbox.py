"""What a host keeps while its database is away: numbered for ever upwards, bounded, and never taken for another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.store.outbox import RUN, Outbox, OutboxFull

BUDGET = 1 << 20


def told(kind: str, size: int = 0) -> dict[str, Any]:
    return {"kind": kind, "detail": "x" * size}


def kinds(outbox: Outbox) -> list[str]:
    return [fields["kind"] for _, fields in outbox.events(100_000)]


def test_numbers_of_a_new_run_are_higher_than_all_before(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    outbox = Outbox(path, BUDGET)
    first = outbox.next_run()
    outbox.close()
    again = Outbox(path, BUDGET)
    assert again.next_run() == first + RUN
    # A host that lost its file goes on above what the database has.
    assert Outbox(tmp_path / "new", BUDGET).next_run(above=7 * RUN + 5) == 8 * RUN


def test_what_is_kept_outlives_the_process_in_its_order_and_goes_when_it_is_sent(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox", BUDGET)
    outbox.keep([(3, told("started")), (5, told("ended"))], {"row": {"a": 1, "b": 2}})
    outbox.keep([(4, told("killed")), (5, told("ended"))], {"row": {"b": 3}})
    outbox.close()
    outbox = Outbox(tmp_path / "outbox", BUDGET)
    assert kinds(outbox) == ["started", "killed", "ended"]
    assert outbox.rows() == {"row": {"a": 1, "b": 3}}
    outbox.sent(4)
    assert kinds(outbox) == ["ended"]
    assert outbox.rows_sent({"row": ["b"], "unknown": ["c"]})
    assert outbox.rows() == {"row": {"a": 1}}
    assert not outbox.rows_sent({"row": ["a"]})


def test_full_it_leaves_out_what_happens_all_the_time_and_then_takes_nothing(tmp_path: Path) -> None:
    outbox, number = Outbox(tmp_path / "outbox", BUDGET), 0
    while outbox.size() <= BUDGET:
        number += 1
        outbox.keep([(number, told("accepted", 4000))], {})
    outbox.keep([(number + 1, told("accepted")), (number + 2, told("ended")), (number + 3, told("freed"))], {})
    assert kinds(outbox)[-1] == "ended"
    assert outbox.left_out == 2
    while outbox.size() <= 1.25 * BUDGET:
        number += 1
        outbox.keep([(number + 3, told("suspended", 4000))], {})
    with pytest.raises(OutboxFull, match="GPUSHARE_OUTBOX"):
        outbox.keep([(number + 4, told("ended"))], {})
    outbox.sent(number)
    outbox.keep([(number + 1000, told("accepted"))], {})
    assert kinds(outbox)[-1] == "accepted"


def test_nobody_but_its_owner_reads_it(tmp_path: Path) -> None:
    Outbox(tmp_path / "outbox", BUDGET).keep([(1, told("ended"))], {})
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


def test_damaged_it_is_set_aside_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite3"
    path.write_bytes(b"no database at all" * 1000)
    assert kinds(Outbox(path, BUDGET)) == []
    assert (tmp_path / "outbox.damaged.sqlite3").read_bytes().startswith(b"no database")


def test_another_databases_is_set_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite3", BUDGET)
    before = outbox.id
    outbox.keep([(1, told("ended"))], {})
    aside = outbox.set_aside()
    assert not outbox.holds_anything()
    assert outbox.id != before
    assert kinds(Outbox(aside, BUDGET)) == ["ended"]
