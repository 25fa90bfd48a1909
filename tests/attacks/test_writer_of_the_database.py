"""Somebody who writes the database, past everything, and has no key: whatever they do to the records is found.

docs/audit.md says what they can even so hide.
"""

import io
import json
import os
import stat
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone

from tests.support.machine import GIB, make_container, make_gpu, make_node
from tests.support.people import make_user
from web import audit
from web.audit import anchor, verified
from web.models import AllocationEvent, AuditEntry, Chain, Seal

KEYS = {"web_allocationevent": "id", "web_auditentry": "id", "web_seal": "number"}
COLUMNS = {
    "web_allocationevent": (
        "id", "at", "kind", "container_id", "gpu_id", "pid", "bytes", "used_after", "waited", "policy", "detail",
        "seal_id",
    ),
    "web_auditentry": ("id", "at", "action", "actor", "address", "subject", "detail", "seal_id"),
    "web_seal": ("number", "at", "rows", "previous", "hash", "node"),
}  # fmt: skip


@pytest.fixture
def writer(transactional_db: None, settings, tmp_path) -> Iterator[None]:
    """Records of two people; and the database's own checks are off, as the writer can turn them off."""
    settings.GPUSHARE_HOME = tmp_path
    sql("DELETE FROM sqlite_sequence")  # ids begin with 1
    ada, bob = make_user("ada"), make_user("bob")
    node = make_node()
    gpus = [make_gpu(node, index) for index in range(2)]
    containers = [make_container(owner, owner.username, gpus[0]) for owner in (ada, bob)]
    for number in range(4):
        audit.record("ada", "launch", containers[0].pk, gpu_memory=GIB, number=number)
        audit.append(
            events=[
                AllocationEvent(
                    at=timezone.now(), kind="accepted", container=each, gpu=gpus[0], pid=10 + number, bytes=number,
                    used_after=number, waited=0.5, policy="fair", detail=f"d{number}",
                )
                for each in containers
            ]
        )  # fmt: skip
    assert audit.verify() == (8, [])
    sql("PRAGMA foreign_keys = OFF")
    yield
    for table in ("web_allocationevent", "web_auditentry", "web_seal", "web_chain"):
        sql(f"DELETE FROM {table}")
    sql("PRAGMA foreign_keys = ON")


def sql(text: str, *values: object) -> int:
    """How many rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(text, values)
        return cursor.rowcount


def unfound(forgeries: dict[str, list[str]]) -> list[str]:
    """The names of those that `verify` does not find; each is made by SQL and taken back."""
    passed = []
    for name, statements in forgeries.items():
        with transaction.atomic():
            assert all(sql(each) for each in statements), name
            if not audit.verify()[1]:
                passed.append(name)
            transaction.set_rollback(True)
    assert audit.verify() == (8, [])
    return passed


def other(table: str, column: str, row: int) -> str:
    """SQL of a value that this column of this row does not have, and might: another row's, if there is one."""
    if column in KEYS.values():
        return "1000"
    if column == "gpu_id":
        return "(SELECT max(id) FROM web_gpu)"
    key = KEYS[table]
    mine = f"(SELECT {column} FROM {table} WHERE {key} = {row})"
    return (
        f"coalesce((SELECT {column} FROM {table} WHERE {column} <> {mine} LIMIT 1), "
        f"CASE typeof({mine}) WHEN 'text' THEN {mine} || 'x' ELSE {mine} + 1 END)"
    )


def first_and_last(table: str) -> tuple[int, int]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT min({KEYS[table]}), max({KEYS[table]}) FROM {table}")
        first, last = cursor.fetchone()
    return first, last


def test_a_change_of_any_column_is_found(writer: None) -> None:
    forgeries = {
        f"{table}.{column} of {row}": [
            f"UPDATE {table} SET {column} = {other(table, column, row)} WHERE {KEYS[table]} = {row}"
        ]
        for table, columns in COLUMNS.items()
        for row in first_and_last(table)
        for column in columns
    }
    assert unfound(forgeries) == []


def test_the_tables_have_no_column_that_is_not_tried_above() -> None:
    for model in (AllocationEvent, AuditEntry, Seal):
        assert {field.column for field in model._meta.fields} == set(COLUMNS[model._meta.db_table])


def test_a_deleted_row_is_found_the_first_one_in_the_middle_or_the_last(writer: None) -> None:
    forgeries = {
        f"{table} {row}": [f"DELETE FROM {table} WHERE {key} = {row}"]
        for table, key in KEYS.items()
        for row in (*first_and_last(table), sum(first_and_last(table)) // 2)
    }
    assert unfound(forgeries) == []


def test_ids_that_changed_places_are_found(writer: None) -> None:
    forgeries = {
        f"{table} {one} and {two}": [
            f"UPDATE {table} SET id = {after} WHERE id = {before}"
            for before, after in ((one, 999), (two, one), (999, two))
        ]
        for table in ("web_allocationevent", "web_auditentry")
        for one, two in ((1, 2), (1, 4), (3, 4))
    }
    assert unfound(forgeries) == []


def test_an_inserted_row_or_a_copy_of_one_is_found_whatever_seal_it_names(writer: None) -> None:
    forgeries = {}
    for table in ("web_allocationevent", "web_auditentry"):
        columns = ", ".join(name for name in COLUMNS[table] if name not in ("id", "seal_id"))
        for seal in (0, -1, 1, 4, 8, 9, 77):
            insert = f"INSERT INTO {table} ({columns}, seal_id) SELECT {columns}, {seal} FROM {table} WHERE id = 2"
            forgeries[f"{table} under seal {seal}"] = [insert]
    assert unfound(forgeries) == []


def test_a_container_that_was_given_to_somebody_else_or_is_gone_is_found(writer: None) -> None:
    """Whoever owns it is billed for what it held."""
    bobs = "(SELECT owner_id FROM web_container WHERE name = 'bob')"
    forgeries = {
        "given away": [f"UPDATE web_container SET owner_id = {bobs} WHERE name = 'ada'"],
        "gone": ["DELETE FROM web_container WHERE name = 'bob'"],
    }
    assert unfound(forgeries) == []


def cut_off(seals: int) -> None:
    """Takes the last seals away, and puts everything back to how it was before them."""
    last = Chain.objects.get().number - seals
    for table in ("web_allocationevent", "web_auditentry"):
        sql(f"DELETE FROM {table} WHERE seal_id > %s", last)
    sql("DELETE FROM web_seal WHERE number > %s", last)
    sql("UPDATE web_chain SET number = %s, hash = (SELECT hash FROM web_seal WHERE number = %s)", last, last)
    assert audit.verify() == (last, [])  # so the database itself tells nothing


@pytest.mark.parametrize("seals", [1, 5])
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_end_that_was_cut_off_is_found_by_the_anchor_also_when_the_log_has_grown_again(
    writer: None, seals: int, goes_on: bool
) -> None:
    anchor.keep()
    call_command("verify_audit", stdout=io.StringIO())
    cut_off(seals)
    if goes_on:
        for _ in range(seals + 1):
            audit.record("ada", "launch", "c", number=99)
    output = io.StringIO()
    with pytest.raises(CommandError, match="tampered with or is damaged"):
        call_command("verify_audit", stderr=output)
    assert "Seal 8 has changed" in output.getvalue()
    noted = anchor.path().read_text()
    with pytest.raises(anchor.Moved, match="cut off or replaced: seal 8"):
        anchor.keep()
    assert anchor.path().read_text() == noted


def test_the_anchor_is_its_owners_alone_goes_along_and_a_damaged_one_is_reported(writer: None) -> None:
    anchor.keep()
    assert anchor.read() == audit.head()
    audit.record("ada", "kill", "c")
    anchor.keep()
    assert anchor.read() == audit.head()
    assert stat.S_IMODE(anchor.path().stat().st_mode) == 0o600
    assert [path.name for path in anchor.path().parent.iterdir()] == [anchor.NAME]
    anchor.path().write_text("{")
    with pytest.raises(CommandError, match="is damaged"):
        call_command("verify_audit", stdout=io.StringIO())
    with pytest.raises(ValueError, match="is damaged"):
        anchor.keep()


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_an_end_that_was_cut_off_with_the_anchor_is_an_error_until_an_admin_accepts_it(
    writer: None, settings: Any, how: str
) -> None:
    """Neither the scheduler nor the command heals it by itself."""
    anchor.begin()
    anchor.path().with_name(anchor.LOCK).touch()  # a scheduler starts
    anchor.keep()
    cut_off(5)
    anchor.path().write_text("{") if how == "damaged" else anchor.path().unlink()
    for _ in range(2):
        anchor.begin()
        with pytest.raises(ValueError, match=f"is {how}"):
            anchor.keep()
        with pytest.raises(CommandError, match=f"is {how}"):
            call_command("verify_audit", stdout=io.StringIO())
        verified.check(60)
        assert f"is {how}" in verified.last()[2]
    call_command("verify_audit", "--accept", stdout=io.StringIO(), stderr=io.StringIO())
    anchor.keep()
    call_command("verify_audit", stdout=io.StringIO())
    assert f"is {how}" in AuditEntry.objects.get(action=anchor.ACCEPTED).detail["before"]


def test_accepting_the_end_accepts_nothing_else(writer: None) -> None:
    anchor.keep()
    before = anchor.read()
    sql("UPDATE web_auditentry SET actor = 'eve' WHERE id = (SELECT min(id) FROM web_auditentry)")
    with pytest.raises(CommandError, match="Nothing is accepted"):
        call_command("verify_audit", "--accept")
    assert anchor.read() == before


def test_the_anchor_of_a_new_home_begins_with_the_chain_as_it_is(writer: None) -> None:
    """As on the host of a node that joins."""
    anchor.begin()
    anchor.path().with_name(anchor.LOCK).touch()
    call_command("verify_audit", stdout=io.StringIO(), stderr=(output := io.StringIO()))
    assert "an end that was cut off would not be found" in output.getvalue()
    anchor.keep()
    assert anchor.read() == audit.head()


def test_without_an_anchor_the_command_says_what_it_cannot_find(writer: None) -> None:
    output = io.StringIO()
    call_command("verify_audit", stdout=io.StringIO(), stderr=output)
    assert "an end that was cut off would not be found" in output.getvalue()


def test_a_second_beginning_at_once_leaves_the_first_anchor(writer: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another scheduler begins the anchor, and notes a seal in it, while this one writes its own."""
    fsync = os.fsync

    def meanwhile(file: int) -> None:
        fsync(file)
        anchor.path().write_text(json.dumps({"number": 7, "hash": "x"}))

    monkeypatch.setattr(os, "fsync", meanwhile)
    anchor.begin()
    assert anchor.read() == (7, "x")
    assert [path.name for path in anchor.path().parent.iterdir()] == [anchor.NAME]
