"""What Django and the store need of a database that a helper process opens (appliance/sqlite_by_owner)."""

import datetime
import decimal
import gc
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper as Direct

from appliance.running.web_user import UNUSED
from appliance.sqlite_by_owner.base import DatabaseWrapper
from appliance.sqlite_by_owner.connection import Connection, Helper
from appliance.sqlite_by_owner.wire import HEAD, pack
from tests.support.eventually import until
from tests.support.tables import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to lose")


def wrapper(kind: type[Direct], folder: Path, alias: str) -> Direct:
    options = {"transaction_mode": "IMMEDIATE", "timeout": 0.1, "init_command": "PRAGMA journal_mode=WAL;"}
    plain = connections["default"].settings_dict
    return kind({**plain, "NAME": str(folder / "some.sqlite3"), "OPTIONS": options, "TIME_ZONE": None}, alias)


@pytest.fixture
def both(tmp_path: Path, django_db_blocker: Any) -> Iterator[tuple[Direct, Direct]]:
    """A database that a helper opens, and another that this process opens."""
    (theirs := tmp_path / "theirs").mkdir()
    (ours := tmp_path / "ours").mkdir()
    os.chown(theirs, UNUSED, UNUSED)
    with django_db_blocker.unblock():
        made = wrapper(DatabaseWrapper, theirs, "owned"), wrapper(DatabaseWrapper, ours, "direct")
        connections["owned"], connections["direct"] = made
        for each in made:
            with each.cursor() as cursor:
                cursor.execute(
                    "CREATE TABLE t (id integer PRIMARY KEY, x text UNIQUE, at datetime, d date, h time, b bool)"
                )
        yield made
        for each in made:
            each.close()
        del connections["owned"], connections["direct"]


@pytest.fixture
def owned(both: tuple[Direct, Direct]) -> Direct:
    return both[0]


def helper(wrapper: Direct) -> subprocess.Popen[bytes]:
    assert isinstance(wrapper.connection, Connection)
    return wrapper.connection.helper


def count(wrapper: Direct) -> int:
    with wrapper.cursor() as cursor:
        return int(cursor.execute("SELECT count(*) FROM t").fetchone()[0])


def insert(wrapper: Direct, text: str) -> None:
    with wrapper.cursor() as cursor:
        cursor.execute("INSERT INTO t (x) VALUES (%s)", [text])


# ---- the same as sqlite3 ----

STATEMENTS: list[tuple[str, Any]] = [
    ("INSERT INTO t (x) VALUES (%s)", ["one"]),
    ("INSERT INTO t (x, at, d, h, b) VALUES (%s, %s, %s, %s, %s)",
     ["two", datetime.datetime(2026, 1, 2, 3, 4, 5, 6), datetime.date(2026, 1, 2), "03:04:05", True]),
    ("SELECT * FROM t", None),
    ("SELECT at AS 'at [datetime]', 1 AS 'one [bool]' FROM t WHERE x = %(x)s", {"x": "two"}),
    ("SELECT %s, %s, %s, %s, %s, %s", [b"\x00\xff", memoryview(b"seen"), 2**62, 1.5, "\U0001f600\x00\u2028", None]),
    ("SELECT %s, %s, %s", [float("inf"), -0.0, decimal.Decimal("1.10")]),
    ("SELECT %s", [2**63]),
    ("SELECT %s", ["\ud800"]),
    ("SELECT %s", [["a list"]]),
    ("SELECT %s", [1, 2]),
    ("SELECT '%%', x FROM t WHERE x REGEXP %s", ["^t"]),
    ("SELECT django_datetime_trunc('hour', at, 'UTC', 'UTC') FROM t", None),
    ("INSERT INTO t (x) VALUES (%s)", ["two"]),
    ("SELECT nonsense", None),
    ("SELECT 1; SELECT 2", None),
    ("SELECT CAST(x'ff' AS TEXT)", None),
    ("INSERT INTO t (x) VALUES ('r'), ('s') RETURNING id, x", None),
    ("UPDATE t SET b = 0", None),
    ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500) SELECT i FROM n", None),
    ("PRAGMA foreign_keys", None),
    ("DELETE FROM t WHERE x = 'one'", None),
]  # fmt: skip


def result_of(wrapper: Direct, sql: str, parameters: Any) -> Any:
    with wrapper.cursor() as cursor:
        try:
            cursor.execute(sql, parameters)
            rows = cursor.fetchall()
        except Exception as error:
            cause = error.__cause__
            return type(error), type(cause), str(error), getattr(cause, "sqlite_errorname", None)
        raw = wrapper.connection
        columns = cursor.description and [column[0] for column in cursor.description]
        state = raw.total_changes, raw.in_transaction, raw.isolation_level
        return rows, [list(map(type, row)) for row in rows], columns, cursor.rowcount, state


def test_statements_have_the_outcome_that_they_have_without_a_helper(both):
    for sql, parameters in STATEMENTS:
        theirs, ours = (result_of(each, sql, parameters) for each in both)
        assert theirs == ours, sql
    for each in both:
        with each.cursor() as cursor:
            cursor.execute("INSERT INTO t (x) VALUES ('last')")
            assert cursor.lastrowid == each.connection.execute("SELECT max(id) FROM t").fetchone()[0]


def test_many_at_once_rows_in_parts_and_several_cursors(both):
    found = []
    for each in both:
        with each.cursor() as cursor, each.cursor() as second:
            cursor.executemany("INSERT INTO t (x) VALUES (%s)", ([str(number)] for number in range(3000)))
            found.append(cursor.rowcount)
            cursor.execute("SELECT id, x FROM t ORDER BY id")
            second.execute("SELECT x FROM t ORDER BY id DESC")
            found.append([cursor.fetchone(), cursor.fetchmany(150), second.fetchone(), len(cursor.fetchmany(2000))])
            found.append([len(cursor.fetchall()), cursor.fetchone(), len(list(second))])
            cursor.execute("SELECT id FROM t")
            cursor.execute("SELECT 7")  # the first one is dropped
            found.append(cursor.fetchall())
    assert found[: len(found) // 2] == found[len(found) // 2 :]


def test_large_rows_come_in_several_answers_and_one_that_is_too_large_is_an_error(owned, monkeypatch):
    with owned.cursor() as cursor:
        many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50)"
        rows = cursor.execute(f"{many} SELECT zeroblob(3000000) FROM n").fetchall()
        assert [len(row[0]) for row in rows] == [3_000_000] * 50
        with pytest.raises(Exception, match="MiB that one message may have") as raised:
            cursor.execute("SELECT zeroblob(80000000)")
        assert isinstance(raised.value.__cause__, sqlite3.DataError)
        assert cursor.execute("SELECT 1").fetchone() == (1,)


def insert_and_fail(wrapper: Direct) -> None:
    with transaction.atomic(using="owned"):
        insert(wrapper, "not kept")
        raise RuntimeError


def test_transactions_and_savepoints(owned):
    with transaction.atomic(using="owned"):
        insert(owned, "kept")
        with pytest.raises(RuntimeError):
            insert_and_fail(owned)
        assert owned.connection.in_transaction
    assert not owned.connection.in_transaction
    with pytest.raises(RuntimeError):
        insert_and_fail(owned)
    assert count(owned) == 1
    owned.set_autocommit(False)
    insert(owned, "rolled back")
    owned.rollback()
    owned.set_autocommit(True)
    assert count(owned) == 1


def test_a_transaction_within_another_asks_for_its_statements_and_its_commit_alone(owned):
    """Each question waits for another process."""
    before = owned.connection._number
    with transaction.atomic(using="owned"), transaction.atomic(using="owned"):
        insert(owned, "kept")
    assert owned.connection._number == before + 2
    assert count(owned) == 1


def test_a_transaction_without_a_statement_takes_the_lock_and_gives_it_back(owned):
    with closing(sqlite3.connect(owned.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="locked"), transaction.atomic(using="owned"):
            pass
    with pytest.raises(RuntimeError), transaction.atomic(using="owned"):
        raise RuntimeError
    insert(owned, "now")
    assert count(owned) == 1


def test_a_lock_that_is_not_had_within_two_transactions_ends_both(owned):
    with closing(sqlite3.connect(owned.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(OperationalError, match=r"^database is locked$"),
            transaction.atomic(using="owned"),
            transaction.atomic(using="owned"),
        ):
            insert(owned, "late")
    assert not owned.connection.in_transaction
    insert(owned, "now")
    assert count(owned) == 1


def test_a_statement_that_is_too_long_leaves_the_transaction_as_it_is(owned):
    with transaction.atomic(using="owned"):
        with owned.cursor() as cursor, pytest.raises(DatabaseError, match="MiB that one message may have"):
            cursor.execute("SELECT %s", ["x" * 80_000_000])
        insert(owned, "kept")
        assert owned.connection.in_transaction
    assert count(owned) == 1


def test_a_lock_of_another_is_the_error_that_it_is_without_a_helper(owned):
    with closing(sqlite3.connect(owned.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match=r"^database is locked$") as raised:
            insert(owned, "late")
    cause = raised.value.__cause__
    assert (cause.sqlite_errorcode, cause.sqlite_errorname) == (sqlite3.SQLITE_BUSY, "SQLITE_BUSY")
    insert(owned, "now")
    assert count(owned) == 1


# ---- a helper that is lost ----


def test_a_transaction_in_which_the_helper_dies_is_an_error_and_not_there(owned):
    def lose_it() -> None:
        with transaction.atomic(using="owned"):
            insert(owned, "first")
            helper(owned).kill()

    with pytest.raises(OperationalError, match="is lost"):
        lose_it()
    owned.close_if_unusable_or_obsolete()
    assert count(owned) == 0


def test_a_statement_in_a_transaction_after_the_helper_died_is_no_statement_of_its_own(owned):
    def go_on() -> None:
        with transaction.atomic(using="owned"):
            insert(owned, "first")
            helper(owned).kill()
            with pytest.raises(OperationalError):
                insert(owned, "second")
            insert(owned, "third")

    with pytest.raises(OperationalError):
        go_on()
    owned.close_if_unusable_or_obsolete()
    assert count(owned) == 0


def test_the_answer_to_a_question_that_was_cut_off_is_not_taken_for_the_next(owned, monkeypatch):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with owned.cursor() as cursor, monkeypatch.context() as patched:
        patched.setattr(Connection, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cursor.execute("SELECT 'old'")
    with pytest.raises(OperationalError, match="a question was cut off"), owned.cursor() as cursor:
        cursor.execute("SELECT 'new'")
    owned.close_if_unusable_or_obsolete()
    with owned.cursor() as cursor:
        assert cursor.execute("SELECT 'new'").fetchall() == [("new",)]


def test_a_helper_that_is_stopped_is_killed(owned, monkeypatch):
    stopped = helper(owned)
    stopped.send_signal(signal.SIGSTOP)
    owned.connection._within = 0.2
    with pytest.raises(OperationalError, match="did not answer within"):
        count(owned)
    assert stopped.returncode == -signal.SIGKILL
    owned.close_if_unusable_or_obsolete()
    assert count(owned) == 0


def test_a_statement_of_a_migration_may_take_as_long_as_a_backup(owned):
    """It may write a whole table anew."""
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000000) SELECT sum(i) FROM n"
    with owned.schema_editor() as editor:
        owned.connection._within = 1e-9
        editor.execute(slow)
    with pytest.raises(OperationalError, match="did not answer within"), owned.cursor() as cursor:
        cursor.execute(slow)


def test_a_connection_that_is_closed_leaves_no_process(owned):
    ended = helper(owned)
    owned.close()
    assert ended.returncode == 0


def test_a_connection_that_is_dropped_leaves_no_process(owned):
    pid = helper(owned).pid
    owned.connection = None
    gc.collect()
    (ended,) = (each for each in Helper.left if each.pid == pid)
    until(lambda: ended.poll() is not None)
    assert count(owned) == 0
    assert ended not in Helper.left


def answer(*words: Any) -> Callable[[int], bytes]:
    return lambda number: pack(number, list(words))


def content(text: bytes) -> Callable[[int], bytes]:
    return lambda number: HEAD.pack(number, len(text)) + text


ROW = [["a"], -1, None, [[1]], False]


@pytest.mark.parametrize(
    "forged",
    [
        lambda number: pack(number - 1, ["ok", False, 0, ROW]),
        lambda number: HEAD.pack(number, 2**32 - 1),
        lambda number: pack(number, ["ok", False, 0, ROW]) + b" ",
        content(b"no JSON"),
        content(b"[" * 100_000 + b"]" * 100_000),
        content(b'{"__class__": "os.system"}'),
        content(b'["ok", false, 0, {"b": 5}]'),
        content(b'["ok", false, 0, {}]'),
        answer("ok", False),
        answer("ok", 1, 0, ROW),
        answer("error", False, 0, ["OperationalError", ["no", "text"], None, None]),
        answer("error", False, 0, "short"),
        answer("ok", False, 0, [["a"], -1, None, [[[1]]], False]),
        answer("ok", False, 0, [["a"], -1, None, [7], False]),
        answer("ok", False, 0, [["a"], -1, None, 7, False]),
        answer("ok", False, 0, None),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_ends_the_connection(owned, forged, monkeypatch):
    raw = owned.connection
    frame = forged(raw._number + 1)

    def read(found: bytearray, size: int, until: float) -> None:
        nonlocal frame
        found += frame
        frame = b""

    monkeypatch.setattr(raw, "_read", read)
    with pytest.raises(OperationalError, match="is lost"):
        count(owned)
    assert raw.lost
    assert raw.helper.returncode is not None


def test_a_process_after_a_fork_does_not_use_the_connection_of_the_one_before(owned):
    child = os.fork()
    if not child:  # pragma: no cover - another process
        try:
            owned.connection.execute("SELECT 1")
        except sqlite3.OperationalError:
            owned.connection.close()
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert count(owned) == 0


# ---- whole ----


@pytest.mark.parametrize(
    "tests",
    [
        "tests/scheduler/test_commits_without_an_answer.py",
        pytest.param("tests/scheduler/test_store.py", marks=pytest.mark.long),
        pytest.param("tests/scheduler/test_nothing_is_lost.py", marks=pytest.mark.long),
        pytest.param("tests/web/test_audit.py", marks=pytest.mark.long),
        pytest.param("tests/web/test_people.py", marks=pytest.mark.long),
    ],
)
def test_what_holds_for_the_store_and_for_requests_holds_with_a_helper(tests):
    """All of them ask Django, in a database that is migrated by the helper, too."""
    plugins = ("-p", "no:cacheprovider", "-p", "tests.support.database_by_owner")
    environ = {name: value for name, value in os.environ.items() if name not in ("GPUSHARE_HOME", "DATABASE_URL")}
    words = [sys.executable, "-m", "pytest", "-q", *plugins, tests]
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
