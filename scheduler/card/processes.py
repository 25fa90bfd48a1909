"""The processes of one container: locked and let go together, by the driver, each with a deadline.

The guardian first receives the pids to be locked: it unlocks what a dead scheduler leaves locked. Processes that
wait for each other on their cards, as NCCL's ranks do, are locked at a cut (gates.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable

from scheduler import clock
from scheduler.card.gates import Gates, Its, uncounted
from scheduler.card.guardian import Guardian
from scheduler.card.helper import CardError, CardHelper, State, Why

LOCK_WITHIN = 5.0  # seconds in which what its processes have given to a card must be done; guardian.c waits for it
LEFT_BEHIND = 0.5  # the same where a rank has ended: what others began with it is never done, and all others wait
SHORTEST = 0.05  # for one that is asked when these are over; to the driver, none are no end
UNLOCK_WITHIN = 2.0  # seconds; it takes half a millisecond
ATTEMPTS = 3  # where the worker that was asked is killed
REMEMBERED = 40.0  # seconds of when they were locked
MISSED, MISSED_MOST = 5.0, 60.0  # seconds without turns after no cut was reached; twice as many each time
AT_ONCE = 4  # processes of one container that are stopped at a time: others' do not wait behind them


class Processes:
    """`locked`: pids that are, or may be. `stops`: since when all are, while they are. `missed`: how often in a row no
    cut was reached.

    Locking and unlocking are one after the other: what a process that is just being locked answers to an unlock says
    nothing of what it will be.
    """

    def __init__(
        self, container: str, card: CardHelper, guardian: Guardian, pids: Callable[[str], set[int]], gates: Its = dict
    ) -> None:
        self._container, self._card, self._guardian, self._pids = container, card, guardian, pids
        self._its, self._gates, self.missed = gates, Gates(gates), 0
        self._stopped: deque[tuple[float, float]] = deque()  # when they were before
        self._places = asyncio.Semaphore(AT_ONCE)
        self._asking = asyncio.Lock()
        self.locked: set[int] = set()
        self.stops: float | None = None

    def new(self) -> set[int]:
        """Those that are not locked."""
        return self._pids(self._container) - self.locked

    def locked_in(self, begin: float, end: float) -> float:
        """Seconds between these two in which all were locked."""
        spans = [*self._stopped, *([(self.stops, end)] if self.stops is not None else [])]
        return sum(max(0.0, min(end, to) - max(begin, since)) for since, to in spans)

    async def lock(self) -> str:
        """All that there are, until there are no more. Returns why that could not be, in a sentence.

        How many there are, and how soon there is another, is a program's own choice, and all others are stopped
        meanwhile: what all have given to the card has LOCK_WITHIN together.
        """
        async with self._asking:
            if self.locked:  # some are stopped already: those are new
                return await self._lock(LOCK_WITHIN)
            async with self._gates.shut() as why:
                self.missed = self.missed + 1 if why else 0
                left_behind = self._gates.left_behind
                why = why or await self._lock(LEFT_BEHIND if left_behind else LOCK_WITHIN)
            if why and left_behind:
                why = f"{why} A rank that it works with has ended, so it may wait for that one for ever."
            if why and (what := uncounted(self._its())):
                why = f"{why} Its ranks may wait for each other: it uses {what}, whose collectives are not counted."
            return why

    @property
    def hung_for(self) -> float | None:
        """Seconds in which it takes no turns after it was not stopped, if there is nothing worse than that."""
        return min(MISSED * 2.0 ** (self.missed - 1), MISSED_MOST) if self.missed else None

    async def _lock(self, within: float) -> str:
        until = clock.monotonic() + within
        while new := self.new():
            if clock.monotonic() > until:
                return "It begins processes faster than they can be stopped."
            self.locked |= new
            try:
                await self._guardian.watch(new)
            except CardError as error:
                self.locked -= new
                return str(error)
            failed = asyncio.Event()  # whoever has not been asked by then need not be
            answers = await asyncio.gather(*(self._lock_one(pid, until, failed) for pid in new))
            ended = {pid for pid, answer in zip(new, answers, strict=True) if answer is None}
            self.locked -= ended
            self._guardian.release(ended)
            self._guardian.locked(pid for pid, answer in zip(new, answers, strict=True) if answer == "")
            if why := next((answer for answer in answers if answer), ""):
                return why
            if ended == new:
                return ""  # what has no context yet, or no more, is looked at again
        return ""

    async def _lock_one(self, pid: int, until: float, failed: asyncio.Event) -> str | None:
        """ "" if it is locked, None if there is nothing to lock, or why it could not be."""
        async with self._places:
            answer = None if failed.is_set() else await self._lock_process(pid, until)
        if answer:
            failed.set()
        return answer

    async def _lock_process(self, pid: int, until: float) -> str | None:
        for attempt in range(ATTEMPTS):
            try:
                await self._card.stop(pid, max(SHORTEST, until - clock.monotonic()))
            except CardError as error:
                if error.why is Why.NOT_THERE:
                    return None
                if error.why is Why.WRONG_STATE and error.state is State.LOCKED:
                    return ""
                if error.why is not Why.FAILED or error.state is not State.UNKNOWN or attempt == ATTEMPTS - 1:
                    return str(error)
            else:
                return ""
        return None

    async def unlock(self) -> bool:
        """All that may be locked; whether none is any more."""
        async with self._asking:
            return await self._unlock()

    async def _unlock(self) -> bool:
        pids = list(self.locked)
        answers = await asyncio.gather(*(self._unlock_one(pid) for pid in pids))
        free = {pid for pid, answer in zip(pids, answers, strict=True) if answer}
        self.locked -= free
        self._guardian.release(free)
        if self.stops is not None and (free or not self.locked):  # those that were let go compute
            now = clock.monotonic()
            self._stopped.append((self.stops, now))
            self.stops = None
            while self._stopped and self._stopped[0][1] < now - REMEMBERED:
                self._stopped.popleft()
        return not self.locked

    async def _unlock_one(self, pid: int) -> bool:
        for _ in range(ATTEMPTS):
            try:
                await self._card.unlock(pid, UNLOCK_WITHIN)
            except CardError as error:
                if error.nothing_to_unlock:
                    return True
                if error.why is Why.HUNG:
                    return False
            else:
                return True
        return False
