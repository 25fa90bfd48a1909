"""Who is heard next: one message of each container in turn, and each container within its budget of messages a second.

A container chooses how many connections it has and how much it says on each. So what is heard is not in the order in
which it came but goes round among the containers, and for no longer than SLICE before the loop is everybody's again:
whoever says little waits for at most one message of each other container. A container that has used up its budget is
not heard until there is some again; meanwhile its messages lie in the kernel, and it waits in its own `send`. What
takes longer than a message may counts as several: what one costs grows with the processes that its container has.

What is to be heard is a piece of work: a call that deals with one message and returns whether there are more.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from scheduler import clock
from scheduler.pace import Pace

Work = Callable[[], bool]

SLICE = 0.002  # seconds
MESSAGES_A_SECOND = 2000  # of a container; most programs ask some ten times a second
MESSAGE = SLICE / 8  # seconds that one may take; so that a container has half the loop at most


class FairQueue:
    """`a_second`: messages of one container."""

    def __init__(self, a_second: float = MESSAGES_A_SECOND, clock: Callable[[], float] = clock.monotonic) -> None:
        self._a_second, self._clock = a_second, clock
        self._work: dict[str, deque[Work]] = {}
        self._round: deque[str] = deque()  # containers with work and with budget left
        self._budgets: dict[str, Pace] = {}
        self._coming = False
        self._began = clock()

    def at_once(self, container: str, work: Work) -> bool:
        """Does it now, without waiting for a turn, if nobody waits for one. Whether it is (still) to be added.

        Of two slices only the first is given away so: of thousands who speak at the same moment, most have to queue.
        """
        if self._work:
            return True
        now = self._clock()
        if now - self._began > 2 * SLICE:
            self._began = now
        return now - self._began > SLICE or bool(self._take(container, now)) or self._do(container, work, now)

    def add(self, container: str, work: Work) -> None:
        if container in self._work:
            self._work[container].append(work)
        else:
            self._work[container] = deque([work])
            self._join(container)

    def forget(self, container: str) -> None:
        """It has ended, and all its connections are closed."""
        self._budgets.pop(container, None)

    def _take(self, container: str, now: float) -> float:
        budget = self._budgets.get(container)
        if budget is None:
            budget = self._budgets[container] = Pace(self._a_second, now)
        return budget.take(now)

    def _do(self, container: str, work: Work, began: float) -> bool:
        more = work()
        if (budget := self._budgets.get(container)) and (beyond := self._clock() - began - MESSAGE) > 0:
            budget.owe(beyond / MESSAGE)
        return more

    def _join(self, container: str) -> None:
        self._round.append(container)
        if not self._coming:
            self._coming = True
            asyncio.get_running_loop().call_soon(self._go_round)

    def _go_round(self) -> None:
        self._coming = False
        end = self._clock() + SLICE
        while self._round and (now := self._clock()) < end:
            container = self._round.popleft()
            if pause := self._take(container, now):
                asyncio.get_running_loop().call_later(pause, self._join, container)
                continue
            queue = self._work[container]
            work = queue.popleft()
            if self._do(container, work, now):
                queue.append(work)
            if queue:
                self._round.append(container)
            else:
                del self._work[container]
        if self._round and not self._coming:
            self._coming = True
            asyncio.get_running_loop().call_soon(self._go_round)
