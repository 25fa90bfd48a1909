"""What is done about one claim is done in turn; what is asked for again while it is done is done once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class InTurn:
    """It goes on when whoever asked for it has stopped waiting."""

    def __init__(self) -> None:
        self._last: dict[str, _Doing] = {}  # by claim: what was begun last

    async def once(self, uid: str, what: str, act: Callable[[], Awaitable[T]]) -> T:
        """Whoever asks for what was begun last waits for that. Raises what `act` raises."""
        last = self._last.get(uid)
        if last is None or last.what != what:
            return await self._begin(uid, what, act)
        found: T = await asyncio.shield(last.task)
        return found

    async def next(self, uid: str, act: Callable[[], Awaitable[T]]) -> T:
        """After all that was begun before, and each by itself. Raises what `act` raises."""
        return await self._begin(uid, "", act)

    async def _begin(self, uid: str, what: str, act: Callable[[], Awaitable[T]]) -> T:
        earlier = self._last.get(uid)
        task = asyncio.create_task(_after(earlier.task if earlier else None, act))
        self._last[uid] = _Doing(what, task)
        task.add_done_callback(lambda task: self._done(uid, task))
        return await asyncio.shield(task)

    def _done(self, uid: str, task: asyncio.Task[Any]) -> None:
        if self._last[uid].task is task:
            del self._last[uid]
        if not task.cancelled():
            task.exception()  # whoever asked for it may have stopped waiting


class _Doing(NamedTuple):
    what: str
    task: asyncio.Task[Any]


async def _after(earlier: asyncio.Task[Any] | None, act: Callable[[], Awaitable[T]]) -> T:
    if earlier is not None:
        await asyncio.wait([earlier])
    return await act()
