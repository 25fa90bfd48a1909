"""The process that opens the database: python -P -m appliance.sqlite_by_owner.helper SOCKET FOLDER (descriptors).

It starts as root, imports what it needs, and becomes the owner of FOLDER, which is all of the file system that it sees
from then on. It ends when its parent closes the socket or ends.
"""

import os
import select
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO

from django.conf import settings

from appliance.sqlite_by_owner.wire import CHUNK, ERRORS, HEAD, TooLong, pack, unpack

FIRST = 100  # rows that come with the answer to a statement
MARKED = ("date", "time", "datetime", "timestamp")  # types of columns whose values the parent converts


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    number, (_, _, _, folder, uid, gid, *given) = channel.receive()
    try:
        if os.getppid() != channel.parent:
            return
        register = _registering()
        try:
            _become(folder, uid, gid)
        except OSError as error:
            raise sqlite3.OperationalError(
                f"root cannot become user {uid}, who can write the folder of the database: {error}. It needs "
                "CAP_SYS_CHROOT, CAP_SETUID and CAP_SETGID"
            ) from None
        database = Database(register, *given)
    except sqlite3.Error as error:
        channel.send(number, _failed(error, False, 0))
        return
    channel.send(number, database.answer(None))
    while True:
        number, question = channel.receive()
        try:
            frame = pack(number, database.take(question))
        except TooLong as error:
            frame = pack(number, database.failed(sqlite3.DataError(str(error))))
        channel.send_frame(frame)


class Channel:
    """Ends this process when the parent has ended or closed its end."""

    def __init__(self, end: socket.socket) -> None:
        self.parent = os.getppid()
        self._end = end
        self._poll = select.poll()
        # A child of the parent may still have the parent's end of the socket.
        for descriptor in (end.fileno(), os.pidfd_open(self.parent)):
            self._poll.register(descriptor, select.POLLIN)

    def receive(self) -> tuple[int, Any]:
        number, length = HEAD.unpack(self._read(HEAD.size))
        return number, unpack(self._read(length), {})

    def send(self, number: int, answer: object) -> None:
        self.send_frame(pack(number, answer))

    def send_frame(self, frame: bytes) -> None:
        try:
            self._end.sendall(frame)
        except OSError:
            os._exit(0)

    def _read(self, count: int) -> bytearray:
        found = bytearray()
        while len(found) < count:
            ready = [descriptor for descriptor, _ in self._poll.poll()]
            try:
                piece = self._end.recv(count - len(found)) if self._end.fileno() in ready else b""
            except OSError:
                piece = b""
            if not piece:
                os._exit(0)
            found += piece
        return found


def _registering() -> Callable[[sqlite3.Connection], None]:
    """What registers Django's functions. All that is read from disk is read here."""
    import zoneinfo

    settings.configure(USE_TZ=True)  # as appliance/settings.py: Django's functions read it
    from django.db.backends.sqlite3._functions import register  # type: ignore[import-untyped,unused-ignore]

    for name in ("UTC", "Etc/UTC"):  # they are kept: later there is no folder of time zones
        with suppress(zoneinfo.ZoneInfoNotFoundError):
            _zones.append(zoneinfo.ZoneInfo(name))
    sqlite3.connect(":memory:").execute("SELECT randomblob(8)")  # seeds SQLite, while there is a /dev/urandom
    found: Callable[[sqlite3.Connection], None] = register
    return found


def _become(folder: int, uid: int, gid: int) -> None:
    """Raises OSError."""
    os.umask(0o007)
    os.fchdir(folder)
    os.close(folder)
    os.chroot(".")
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


_zones: list[Any] = []


class Database:
    def __init__(self, register: Callable[[sqlite3.Connection], None], name: str, timeout: float) -> None:
        """Raises sqlite3.Error."""
        sqlite3.register_converter("bool", b"1".__eq__)
        for kind in MARKED:
            sqlite3.register_converter(kind, _marking(kind))
        with suppress(OSError):  # SQLite says it better
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o660))
        types = sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES
        self._connection = sqlite3.connect(name, timeout, types, check_same_thread=False)
        register(self._connection)
        self._cursors: dict[int, sqlite3.Cursor] = {}
        self._copy: BinaryIO | None = None

    def take(self, question: Sequence[Any]) -> list[Any]:
        word, dropped, first, *arguments = question
        for each in dropped:
            if cursor := self._cursors.pop(each, None):
                cursor.close()
        try:
            for sql in first:
                self._connection.execute(sql)
            return self.answer(getattr(self, f"do_{word}")(*arguments))
        except Exception as error:
            return self.failed(error)

    def answer(self, result: object) -> list[Any]:
        return ["ok", self._connection.in_transaction, self._connection.total_changes, result]

    def failed(self, error: Exception) -> list[Any]:
        return _failed(error, self._connection.in_transaction, self._connection.total_changes)

    def do_execute(self, number: int, sql: str, parameters: Any) -> list[Any]:
        cursor = self._connection.cursor()
        if isinstance(parameters, list) and parameters and parameters[0] == "named":
            parameters = dict(parameters[1])
        cursor.execute(sql, parameters)
        columns = cursor.description and [column[0] for column in cursor.description]
        rows, more = _taken(cursor, FIRST) if columns else ([], False)
        if more:
            self._cursors[number] = cursor
        return [columns, cursor.rowcount, cursor.lastrowid, rows, more]

    def do_executemany(self, sql: str, parameters: Iterable[Any]) -> list[Any]:
        cursor = self._connection.cursor()
        cursor.executemany(sql, parameters)
        return [None, cursor.rowcount, cursor.lastrowid, [], False]

    def do_fetch(self, number: int, count: int) -> list[Any]:
        rows, more = _taken(self._cursors[number], count)
        if not more:
            del self._cursors[number]
        return [rows, more]

    def do_commit(self) -> None:
        self._connection.commit()

    def do_rollback(self) -> None:
        self._connection.rollback()

    def do_isolate(self, level: str | None) -> None:
        self._connection.isolation_level = level  # type: ignore[assignment]

    def do_copy(self) -> None:
        """Makes a copy of the database, for `do_copied`."""
        name = f".copy-{os.getpid()}"
        with suppress(FileNotFoundError):
            os.unlink(name)
        try:
            self._connection.execute("VACUUM INTO ?", (name,))
            self._copy = open(name, "rb")  # noqa: SIM115
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)

    def do_copied(self) -> bytes:
        """The next part of the copy; empty: that was all."""
        assert self._copy
        return self._copy.read(CHUNK)


def _marking(kind: str) -> Callable[[bytes], dict[str, str]]:
    return lambda raw: {kind: raw.decode()}


def _taken(cursor: sqlite3.Cursor, most: int) -> tuple[list[Any], bool]:
    """The next rows, `most` or about CHUNK bytes, and whether there may be more."""
    rows, size = [], 0
    for row in islice(cursor, most):
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if size > CHUNK:
            return rows, True
    return rows, len(rows) == most


def _failed(error: Exception, in_transaction: bool, changes: int) -> list[Any]:
    code, name = getattr(error, "sqlite_errorcode", None), getattr(error, "sqlite_errorname", None)
    kind = next((each.__name__ for each in type(error).__mro__ if each in ERRORS.values()), "OperationalError")
    return ["error", in_transaction, changes, [kind, str(error)[:4096], code, name]]


if __name__ == "__main__":
    main()
