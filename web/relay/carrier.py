"""One session's bytes, each way, over Redis: in order, each once, sealed, and never much of them on their way.

A message is a head and bytes, sealed by AES-GCM under the session's key with its number and its direction as the nonce.
So one that is left out, sent twice, changed or somebody else's opens as nothing, and ends the session. The head says
how many bytes this side has taken so far: nobody sends more than WINDOW beyond that. Each side says something at least
every BEAT; who hears nothing for SILENCE ends, and what is left in Redis goes by itself.
"""

from __future__ import annotations

import asyncio
import struct
import time
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

WINDOW = 256 << 10  # bytes each way; how many sessions there are at once is a budget (relayed_in_all)
CHUNK = 32 << 10  # bytes of a message
BEAT = 4.0  # seconds
SILENCE = 15.0
KEPT = 60  # seconds that Redis keeps what nobody takes
KEY_BYTES = 32
_HEAD = struct.Struct("!BQ")
_NONCE = struct.Struct("!IQ")


class Side(IntEnum):
    WEB = 0
    NODE = 1

    @property
    def other(self) -> Side:
        return Side(1 - self)


class Said(IntEnum):
    BYTES = 0
    END = 1  # of the bytes of this side
    GONE = 2  # it listens no more


class Lost(Exception):
    """The other side is gone, silent, or not who it should be."""


class Sealing:
    """The messages of one session."""

    def __init__(self, session: UUID, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 8 MiB that one host alone does not need

        self._session, self._cipher = session.bytes, AESGCM(key)

    def seal(self, side: Side, number: int, message: bytes) -> bytes:
        return self._cipher.encrypt(_NONCE.pack(side, number), message, self._session)

    def open(self, side: Side, number: int, sealed: bytes) -> bytes:
        """Raises Lost."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(_NONCE.pack(side, number), sealed, self._session)
        except (InvalidTag, ValueError):
            raise Lost("what came is not what the other side has said") from None


def list_of(session: UUID, side: Side) -> str:
    """The name in Redis of what this side says."""
    return f"gpushare.relay.{session}.{side.name.lower()}"


def _faults() -> tuple[type[Exception], ...]:
    """Of Redis and of the connection; TimeoutError is an OSError."""
    from redis.exceptions import RedisError  # its client is loaded only where there is a Redis

    return RedisError, OSError


class Carrier:
    """`pace` waits until so many bytes may go. `answered` is set with the first word of the other side."""

    def __init__(
        self, redis: Redis, session: UUID, key: bytes, side: Side,
        pace: Callable[[int], Awaitable[None]] | None = None, answered: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        self._redis, self._side, self._sealing, self._pace = redis, side, Sealing(session, key), pace
        self._outbox, self._inbox = list_of(session, side), list_of(session, side.other)
        self._answered = answered or asyncio.Event()
        self._in_order = asyncio.Lock()
        self._said = self._heard = 0  # messages
        self._sent = self._theirs = 0  # bytes of ours: sent, and taken by the other side
        self._got = self._taken = self._reported = 0  # bytes of theirs: here, taken, and said to be taken
        self._ended = self._theirs_ended = False
        self._room, self._due = asyncio.Event(), asyncio.Event()
        self._untaken: asyncio.Queue[bytes] = asyncio.Queue()  # empty bytes: their end

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What is read here is written there and the other way round, until both have ended. Raises Lost."""
        passing = {asyncio.create_task(each) for each in (self._send(reader), self._deliver(writer))}
        tasks = passing | {asyncio.create_task(each) for each in (self._receive(), self._beat())}
        try:
            running = tasks
            while passing & running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        except _faults() as error:
            raise Lost(str(error) or type(error).__name__) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not self._over():
                with suppress(*_faults()):
                    async with asyncio.timeout(1):
                        await self._push(Said.GONE)

    def _over(self) -> bool:
        """Both have said their last, so nobody has to be listened to any more."""
        return self._ended and self._theirs_ended

    async def _send(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            while self._sent + len(data) - self._theirs > WINDOW:
                self._room.clear()
                await self._room.wait()
            if self._pace:
                await self._pace(len(data))
            self._sent += len(data)
            await self._push(Said.BYTES, data)
        await self._push(Said.END)
        self._ended = True

    async def _deliver(self, writer: asyncio.StreamWriter) -> None:
        while data := await self._untaken.get():
            writer.write(data)
            await writer.drain()
            self._taken += len(data)
            if self._taken - self._reported >= WINDOW // 4:
                self._due.set()
        writer.write_eof()

    async def _beat(self) -> None:
        while True:
            self._due.clear()
            await self._push(Said.BYTES)
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT):
                    await self._due.wait()

    async def _receive(self) -> None:
        heard = time.monotonic()
        while not self._over() and time.monotonic() - heard < SILENCE:
            if found := await self._redis.blpop([self._inbox], timeout=BEAT):
                self._hear(self._sealing.open(self._side.other, self._heard, cast("bytes", found[1])))
                self._heard += 1
                heard = time.monotonic()
                self._answered.set()
        if not self._over():
            raise Lost("nothing was heard any more")

    def _hear(self, message: bytes) -> None:
        """Raises Lost."""
        said, taken = _HEAD.unpack_from(message)
        data = message[_HEAD.size :]
        self._got += len(data)
        if not self._theirs <= taken <= self._sent or self._got - self._taken > WINDOW:
            raise Lost("the other side does not keep to the window")
        if taken > self._theirs:
            self._theirs = taken
            self._room.set()
        if said == Said.GONE:
            raise Lost("the other side has hung up")
        if said == Said.END:
            self._theirs_ended = True
        if data or said == Said.END:
            self._untaken.put_nowait(data)

    async def _push(self, said: Said, data: bytes = b"") -> None:
        async with self._in_order:
            self._reported = self._taken
            sealed = self._sealing.seal(self._side, self._said, _HEAD.pack(said, self._taken) + data)
            self._said += 1
            together: Any = self._redis.pipeline(transaction=True)
            await together.rpush(self._outbox, sealed).expire(self._outbox, KEPT).execute()
