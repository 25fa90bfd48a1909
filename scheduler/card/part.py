"""One container in the turns of computing: its orders are carried out one after the other, beside those of others."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from scheduler.card.helper import CardError, CardHelper, State, Why
from scheduler.card.processes import UNLOCK_WITHIN, Processes
from scheduler.card.terms import Terms
from scheduler.core.turns import Effect

AGAIN = 1.0  # seconds until a process that did not answer is asked again

Order = Effect | None  # None: its new processes are to be locked


class Part:
    """`carry_out` does one order. `barred`: why it takes no turns now, by container of its group and reason. `quiet`:
    nothing of it is locked, and none of its processes is being asked."""

    def __init__(
        self, id_: str, terms: Terms, processes: Processes, carry_out: "Callable[[Part, Order], Awaitable[None]]"
    ) -> None:
        self.id, self.terms, self.processes, self._carry_out = id_, terms, processes, carry_out
        self.barred = set[tuple[str, str]]()
        self._orders = deque[Order]()
        self._task: asyncio.Task[None] | None = None
        self.quiet = asyncio.Event()
        self.quiet.set()

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def order(self, order: Order) -> None:
        self._orders.append(order)
        self.quiet.clear()
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name=f"turns of {self.id}")

    async def _work(self) -> None:
        try:
            while self._orders:
                await self._carry_out(self, self._orders.popleft())
        finally:
            self._task = None
            if not self.processes.locked:
                self.quiet.set()

    def forget_orders(self) -> None:
        self._orders.clear()

    async def lock_state(self, card: CardHelper) -> None:
        """Counts as locked whichever of its processes the driver says is so, or cannot be asked about."""
        for pid in self.processes.new():
            try:
                locked = await card.state(pid, UNLOCK_WITHIN) is State.LOCKED
            except CardError as error:
                locked = error.why is not Why.NOT_THERE  # it may be locked, and nobody looks at it again
            if locked:
                self.processes.locked.add(pid)

    async def unlocked(self) -> None:
        """Asks again and again until all of it is unlocked."""
        while True:
            if await self.processes.unlock():
                break
            await asyncio.sleep(AGAIN)
        if self._task is None:
            self.quiet.set()

    async def let_go(self) -> None:
        """At the end, once what it is being asked has its answer."""
        while (task := self._task) is not None and not task.done():
            await asyncio.wait([task])
        await self.processes.unlock()

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
