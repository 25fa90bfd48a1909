"""A connection of Python's DB-API whose SQLite runs in a helper process (helper.py), with what Django needs of it."""

import datetime
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, ClassVar

from django.utils.dateparse import parse_date, parse_datetime, parse_time

from appliance.sqlite_by_owner.wire import ERRORS, HEAD, LONGEST, TooLong, pack, unpack

BEYOND_LOCKS = 40.0  # seconds that a statement may take, beside the time that it may wait for a lock
LONG = 1800.0  # seconds, for a backup, and for a statement of a migration: it may write a whole table anew
MORE = 1000  # rows that a further answer has at most
ENDS_WITHIN = 5.0  # seconds, for a helper whose socket is closed

CONVERTERS: dict[str, Callable[[str], Any]] = {
    "date": parse_date, "time": parse_time, "datetime": parse_datetime, "timestamp": parse_datetime,
}  # fmt: skip
NONE = type(None)
PLAIN = frozenset((NONE, bool, int, float, str, bytes))
# What begins or closes a part of a transaction goes with the next question, as nobody waits for its result, and each
# question waits for another process. If it fails, as a BEGIN at a lock, the next one, within the same part, says so.
WITH_THE_NEXT = ("BEGIN", "SAVEPOINT ", "RELEASE ")
ANY = (NONE, list, bytes)  # of a result: what its question makes it is checked where it was asked
VALUES = PLAIN | {datetime.date, datetime.time, datetime.datetime}


@contextmanager
def _as_sqlite() -> Iterator[None]:
    try:
        yield
    except OSError as error:  # such as no process left
        raise sqlite3.OperationalError(
            f"the helper process that opens the database cannot be started: {error}"
        ) from error


class End(socket.socket):
    def __del__(self) -> None:
        self.close()


class Helper(subprocess.Popen[bytes]):
    """A connection may be dropped without `close`, as one of sqlite3 may, when its thread ends."""

    left: "ClassVar[list[Helper]]" = []
    pid_of_parent = 0

    def __del__(self) -> None:
        """Whichever thread this runs in, it waits for no process: the next connection does."""
        if self.pid_of_parent == os.getpid() and self.returncode is None:
            with suppress(ProcessLookupError):
                self.kill()
            self.left.append(self)

    @classmethod
    def start(cls, *arguments: Any, **words: Any) -> "Helper":
        """Raises OSError."""
        for each in cls.left[:]:
            if each.poll() is not None:
                with suppress(ValueError):  # another thread was faster
                    cls.left.remove(each)
        made = cls(*arguments, **words)
        made.pid_of_parent = os.getpid()
        return made


class Connection:
    """All errors are those of sqlite3. An OperationalError says that the helper was lost: what a transaction that was
    open then has written is not there, unless its commit was asked for, which may have been done or not."""

    def __init__(self, folder: int, name: str, uid: int, gid: int, timeout: float) -> None:
        """`folder`: a descriptor of the database's folder, `name` the file in it. `timeout`: seconds, for locks."""
        self.in_transaction, self.total_changes = False, 0
        self._within = timeout + BEYOND_LOCKS
        self.migrates = False
        self._name = name
        self._lock = threading.Lock()
        self._number = 0
        self._cursors = 0
        self._dropped: list[int] = []
        self._first: list[str] = []  # statements that go with the next question
        self._level: str | None = ""
        self._pid = os.getpid()
        self.lost = ""  # why nothing can be asked any more
        with _as_sqlite():
            self._start(folder)
        try:
            self.ask("open", folder, uid, gid, name, timeout)
        except BaseException:
            self.close()
            raise

    def _start(self, folder: int) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        self._end = End(fileno=ours.detach())
        with theirs:
            words = [sys.executable, "-P", "-m", f"{__package__}.helper", str(theirs.fileno())]
            path = os.pathsep.join(os.path.abspath(each) for each in sys.path)
            self.helper = Helper.start(
                words, pass_fds=(theirs.fileno(), folder), env={"PYTHONPATH": path},
                cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for its parent
            )  # fmt: skip

    # ---- what Django uses ----

    def cursor(self) -> "Cursor":
        return Cursor(self)

    def execute(self, sql: str, parameters: Any = ()) -> "Cursor":
        return Cursor(self).execute(sql, parameters)

    def commit(self) -> None:
        if self.lost or self.in_transaction:
            self.ask("commit")

    def rollback(self) -> None:
        self._first.clear()
        if self.lost or self.in_transaction:
            self.ask("rollback")

    @property
    def isolation_level(self) -> str | None:
        return self._level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        """Django sets it again after each transaction, as it is already."""
        if self.lost or self.in_transaction or level != self._level:
            self.ask("isolate", level)
        self._level = level

    def close(self) -> None:
        """Raises nothing."""
        self.lost = self.lost or "the connection is closed"
        self._end.close()
        if os.getpid() == self._pid and self.helper.returncode is None:
            try:
                self.helper.wait(ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                self._kill()

    def copy_to(self, file: BinaryIO) -> None:
        """The whole database as it is now, as one file."""
        self.ask("copy", within=LONG)
        while part := self.ask("copied"):
            if type(part) is not bytes:
                raise self.lose("it sent something that is no part of a file")
            file.write(part)

    # ---- questions and answers ----

    def next_cursor(self) -> int:
        self._cursors += 1
        return self._cursors

    def drop(self, cursor: int) -> None:
        """The helper closes it before the next question."""
        self._dropped.append(cursor)

    def first(self, sql: str) -> None:
        """Raises sqlite3.OperationalError."""
        if self.lost:
            raise sqlite3.OperationalError(self._sentence())
        self._first.append(sql)
        self.in_transaction = True

    def ask(self, word: str, *arguments: Any, within: float = 0.0) -> Any:
        """`within`: seconds, if not as long as usual. Raises sqlite3.Error, and what sqlite3 raises besides."""
        within = within or (LONG if self.migrates else self._within)
        if os.getpid() != self._pid:
            raise sqlite3.OperationalError("This connection to the database is that of the process before the fork.")
        with self._lock:
            if self.lost:
                raise sqlite3.OperationalError(self._sentence())
            self._number += 1
            dropped, first = self._dropped[:], self._first[:]
            try:
                frame = pack(self._number, [word, dropped, first, *arguments])
            except TooLong as error:
                raise sqlite3.DataError(str(error)) from None
            del self._dropped[: len(dropped)], self._first[:]
            until = time.monotonic() + within
            try:
                self._send(frame, until)
                answer = unpack(self._receive(until), CONVERTERS)
                kind, in_transaction, changes, result = _checked(answer, (str,), (bool,), (int,), ANY)
                failure = None if kind == "ok" else _error(*_checked(result, (str,), (str,), (int, NONE), (str, NONE)))
                self.in_transaction, self.total_changes = in_transaction, changes
            except TimeoutError:
                raise self.lose(f"it did not answer within {within:g} s") from None
            except (OSError, EOFError, ValueError, TypeError, RecursionError) as error:
                raise self.lose(str(error)) from error
            except BaseException:  # as Ctrl-C: the answer would be taken for that of the next question
                self.lose("a question was cut off")
                raise
        if failure:
            raise failure
        return result

    def _send(self, frame: bytes, until: float) -> None:
        self._end.settimeout(max(until - time.monotonic(), 0.001))
        self._end.sendall(frame)

    def _receive(self, until: float) -> bytearray:
        found = bytearray()
        self._read(found, HEAD.size, until)
        number, length = HEAD.unpack_from(found)
        if number != self._number or length > LONGEST:
            raise ValueError(f"it answered question {number} with {length} bytes, asked was {self._number}")
        self._read(found, HEAD.size + length, until)
        if len(found) > HEAD.size + length:
            raise ValueError("it answered more than one question")
        return found[HEAD.size :]

    def _read(self, found: bytearray, count: int, until: float) -> None:
        """Until there are so many bytes; what has come with them as well, so that a short answer takes one call."""
        while len(found) < count:
            self._end.settimeout(max(until - time.monotonic(), 0.001))
            piece = self._end.recv(min(max(count - len(found), 1 << 14), 1 << 20))
            if not piece:
                raise EOFError("it has ended")
            found += piece

    def lose(self, why: str) -> sqlite3.OperationalError:
        self.lost = why
        self._end.close()
        self._kill()
        return sqlite3.OperationalError(self._sentence())

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self.helper.kill()
        with suppress(subprocess.TimeoutExpired):  # in a call to a disk that does not answer, it ends later
            self.helper.wait(ENDS_WITHIN)

    def _sentence(self) -> str:
        return f"The connection to the database {self._name} is lost: of its helper process, {self.lost}."


def _error(kind: str, message: str, code: int | None, name: str | None) -> Exception:
    error = ERRORS.get(kind, sqlite3.OperationalError)(message)
    if code is not None:
        error.sqlite_errorcode, error.sqlite_errorname = code, name  # type: ignore[attr-defined]
    return error


def plain(place: object, value: Any) -> Any:
    """As sqlite3 binds it. Raises sqlite3.ProgrammingError, and UnicodeEncodeError."""
    if isinstance(value, str):
        value.encode()  # or the helper would find out, and an error crosses without what it is about
        return value
    if type(value) in PLAIN or isinstance(value, (int, float)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    adapted = sqlite3.adapt(value, sqlite3.PrepareProtocol, None)
    if type(adapted) not in PLAIN or adapted is None:
        message = f"Error binding parameter {place}: type '{type(value).__name__}' is not supported"
        raise sqlite3.ProgrammingError(message)
    return adapted


def _all_plain(parameters: Any) -> Any:
    if isinstance(parameters, Mapping):
        return ["named", [[name, plain(f"':{name}'", value)] for name, value in parameters.items()]]
    return [plain(place, value) for place, value in enumerate(parameters, 1)]


class Cursor:
    arraysize = 1

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount, self.lastrowid = -1, None
        self._rows: deque[tuple[Any, ...]] = deque()
        self._number = 0  # of a statement in the helper that has more rows
        self._closed = False

    def execute(self, sql: str, parameters: Any = ()) -> "Cursor":
        self._begin()
        if sql.startswith(WITH_THE_NEXT):
            self.connection.first(sql)
            return self
        number = self.connection.next_cursor()
        self._note(number, self.connection.ask("execute", number, sql, _all_plain(parameters)))
        return self

    def executemany(self, sql: str, parameters: Iterable[Any]) -> "Cursor":
        self._begin()
        self._note(0, self.connection.ask("executemany", sql, [_all_plain(each) for each in parameters]))
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        self._require_open()
        while not self._rows and self._number:
            self._more()
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        while len(found) < (size or self.arraysize) and (row := self.fetchone()) is not None:
            found.append(row)
        return found

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        if (row := self.fetchone()) is None:
            raise StopIteration
        return row

    def close(self) -> None:
        self._forget()
        self._closed = True

    def __del__(self) -> None:
        self._forget()

    def _begin(self) -> None:
        self._require_open()
        self._forget()

    def _require_open(self) -> None:
        if self._closed:
            raise sqlite3.ProgrammingError("Cannot operate on a closed cursor.")

    def _forget(self) -> None:
        if self._number:
            self.connection.drop(self._number)
        self._number = 0
        self._rows.clear()

    def _note(self, number: int, answer: object) -> None:
        try:
            columns, count, row, rows, more = _checked(answer, (list, NONE), (int,), (int, NONE), (list,), (bool,))
            self.description = columns and [(str(name), None, None, None, None, None, None) for name in columns]
            self.rowcount, self.lastrowid, self._number = count, row, number
            self._add(rows, more)
        except (TypeError, ValueError) as error:
            raise self.connection.lose(str(error)) from None

    def _more(self) -> None:
        try:
            self._add(*_checked(self.connection.ask("fetch", self._number, MORE), (list,), (bool,)))
        except (TypeError, ValueError) as error:
            raise self.connection.lose(str(error)) from None

    def _add(self, rows: Sequence[Any], more: bool) -> None:
        """Raises TypeError."""
        for row in rows:
            if type(row) is not list or not VALUES.issuperset(map(type, row)):
                raise TypeError("it sent something that is no row")
            self._rows.append(tuple(row))
        if not more:
            self._number = 0


def _checked(found: object, *kinds: tuple[type, ...]) -> list[Any]:
    """A list of values of these types. Raises TypeError."""
    if type(found) is not list or len(found) != len(kinds) or any(map(_is_other, found, kinds)):
        raise TypeError("its answer is none")
    return found


def _is_other(value: object, kinds: tuple[type, ...]) -> bool:
    return type(value) not in kinds
