"""What a connection and its helper send each other: frames of a number, a length and JSON.

An answer has the number of its question. The helper has the rights of a user who may be an attacker: an answer is
plain values, never pickled objects, and its length is bounded.
"""

import base64
import json
import sqlite3
import struct
from collections.abc import Callable
from typing import Any

HEAD = struct.Struct("!QI")  # the number of the question, and the bytes that follow
LONGEST = 64 << 20  # bytes of one answer
CHUNK = 1 << 20  # bytes of rows after which an answer ends and the next rows wait for the next question
BYTES = "b"  # the key of {"b": base64}

ERRORS: dict[str, type[Exception]] = {
    each.__name__: each
    for each in (sqlite3.Warning, sqlite3.Error, sqlite3.DatabaseError, sqlite3.DataError, sqlite3.IntegrityError,
                 sqlite3.InterfaceError, sqlite3.InternalError, sqlite3.NotSupportedError, sqlite3.OperationalError,
                 sqlite3.ProgrammingError, OverflowError, TypeError, ValueError, MemoryError)
}  # fmt: skip


class TooLong(ValueError):
    """An answer would be longer than LONGEST."""


def pack(number: int, value: object) -> bytes:
    """Raises TooLong."""
    content = json.dumps(value, separators=(",", ":"), default=_bytes).encode()
    if len(content) > LONGEST:
        raise TooLong(f"{len(content) >> 20} MiB are more than the {LONGEST >> 20} MiB that one message may have")
    return HEAD.pack(number, len(content)) + content


def unpack(content: bytes | bytearray, known: dict[str, Callable[[str], Any]]) -> Any:
    """`known`: what a text becomes that is marked with this key. Raises ValueError, and RecursionError."""

    def made(found: dict[str, Any]) -> Any:
        ((key, text),) = found.items()
        if type(text) is not str:
            raise ValueError(f"the value of {key} is no text")
        return base64.b64decode(text) if key == BYTES else known[key](text)

    try:
        return json.loads(content, object_hook=made)
    except KeyError as error:
        raise ValueError(f"unknown kind of value: {error}") from None


def _bytes(value: object) -> dict[str, str]:
    return {BYTES: base64.b64encode(value).decode()}  # type: ignore[arg-type]
