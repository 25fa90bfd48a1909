"""An older release's audit log, whose seals covered less, is sealed as a whole when it is upgraded."""

from __future__ import annotations

import json
import lzma
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests" / "support" / "old" / "audit-1.sqlite3.xz"


AFTER = {
    "another actor": "UPDATE web_auditentry SET actor = 'eve' WHERE action = 'launch'",
    "another owner": "UPDATE web_container SET owner_id = 2",
    "another id": "UPDATE web_allocationevent SET id = 100 WHERE id = 1",
    "another time of a seal": "UPDATE web_seal SET at = '2020-01-01' WHERE number = 2",
    "an event less": "DELETE FROM web_allocationevent WHERE id = 2",
    "no entry of the upgrade": "UPDATE web_auditentry SET action = 'other' WHERE action = 'audit-resealed'",
    "an empty entry of the upgrade": "UPDATE web_auditentry SET detail = '{}' WHERE action = 'audit-resealed'",
    "a deleted entry of the upgrade": "DELETE FROM web_auditentry WHERE action = 'audit-resealed'",
}
BEFORE = {
    "Seal 1 of": "UPDATE web_auditentry SET actor = 'eve' WHERE action = 'launch'",
    "The allocation event 1 of": "UPDATE web_allocationevent SET seal_id = 77 WHERE id = 1",
    "Seal 3 does not follow": "DELETE FROM web_seal WHERE number = 2",
    "should end with seal 2": "UPDATE web_chain SET number = 2",
}
# Each database is upgraded once, and looked at in as many copies as there are things done to it after that ("then").
LOOK = """
import json, shutil, sys
import django
django.setup()
from django.core.management import call_command
from django.db import connection
from web import audit
from web.audit import verifying
for path, thens, *known in json.load(sys.stdin):
    connection.close()
    connection.settings_dict["NAME"] = path
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number, then in enumerate(thens):
        connection.close()
        connection.settings_dict["NAME"] = shutil.copy(path, f"{path}-{number}")
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA foreign_keys = OFF")
            cursor.execute(then)
        print(json.dumps([*audit.verify(*known), verifying.faults_of_before()]))
"""


def sql(path: Path, text: str) -> list[tuple[object, ...]]:
    """As somebody who may write the file, without any of Django's checks."""
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(text).fetchall()
    finally:
        connection.close()


def look(home: Path, cases: list[tuple[str, list[str], object]]) -> list[tuple[int, list[str], str]]:
    """What comes of each old database: `before` is done to it, it is upgraded, each `then` is done to a copy."""
    orders = []
    for number, (before, thens, *known) in enumerate(cases):
        path = home / f"{number}.sqlite3"
        path.write_bytes(lzma.decompress(OLD.read_bytes()))
        sql(path, before)
        orders.append([str(path), thens, *known])
    environ = {
        **os.environ,
        "GPUSHARE_HOME": str(home),
        "GPUSHARE_SECRET_KEY": "of an older release",
        "DJANGO_SETTINGS_MODULE": "appliance.settings",
    }
    done = subprocess.run(
        [sys.executable, "-c", LOOK], input=json.dumps(orders), cwd=ROOT, env=environ, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


NOTHING = "SELECT 1"


def test_an_honest_one_verifies_after_the_upgrade_and_hashes_noted_before_it_still_hold(tmp_path: Path) -> None:
    old = tmp_path / "old.sqlite3"
    old.write_bytes(lzma.decompress(OLD.read_bytes()))
    noted = sql(old, "SELECT number, hash FROM web_chain")[0]
    assert look(tmp_path, [(NOTHING, [NOTHING], noted)]) == [[4, [], ""]]


def test_what_is_changed_after_the_upgrade_is_found(tmp_path: Path) -> None:
    found = look(tmp_path, [(NOTHING, list(AFTER.values()))])
    assert [name for name, (_, faults, _) in zip(AFTER, found, strict=True) if not faults] == []


def test_what_was_not_whole_before_it_is_told_ever_after_and_what_comes_is_sealed(tmp_path: Path) -> None:
    change = "UPDATE web_allocationevent SET bytes = 5 WHERE id = 1"
    found = look(tmp_path, [(forged, [NOTHING, change]) for forged in BEFORE.values()])
    for told, whole, changed in zip(BEFORE, found[::2], found[1::2], strict=True):
        assert whole[1] == []
        assert "it was not whole" in whole[2]
        assert told in whole[2]
        assert changed[1] != [], told
