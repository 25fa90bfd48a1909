"""The driver's checkpoint calls as an object, whose answers a test chooses, and the helpers that make them.

driver.takes["checkpoint"] = 3.0        seconds, from now on
driver.faults["lock"] = FAILS           the next one; HANGS: it and all after it, until it is taken away
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from scheduler.card.access import CardAccess
from scheduler.card.generation import Generation
from scheduler.card.guardian import Guardian
from scheduler.card.helper import Answer, CardError, CardHelper, Done, State, Why, _first
from scheduler.gpus import uuid_bytes
from tests.support.inprocess.cards import Cards
from tests.support.inprocess.kernel import Kernel

FAILS, HANGS, PROCESS_DIES = "fails", "hangs", "process dies"
STEPS = {
    "lock": (State.RUNNING, State.LOCKED),
    "stop": (State.RUNNING, State.LOCKED),
    "checkpoint": (State.LOCKED, State.CHECKPOINTED),
    "restore": (State.CHECKPOINTED, State.LOCKED),
    "unlock": (State.LOCKED, State.RUNNING),
}
NOT_THERE, NO_ROOM, WRONG_STATE, NOT_DONE, UNKNOWN = 1, 2, 401, 600, 999  # CUresult
Asked = tuple[str, int]


class Driver:
    """`asked`: each call, in its order. `states`: of all that have a context."""

    def __init__(self, kernel: Kernel, kill: Callable[[int], None]) -> None:
        self.states: dict[int, State] = {}
        self.takes = dict.fromkeys(STEPS, 0.0)
        self.faults: dict[str, str] = {}
        self.refuses: dict[str, int] = {}  # step → CUresult, whoever asks
        self.pairs_refused = 0  # CUresult of a restore on another card
        self.asked: list[Asked] = []
        self.why_not = ""
        self.cards: Cards
        self.on: dict[int, dict[str, str]] = {}  # pid → GPU that it began on → where it is now, if that is another
        self._away: dict[int, dict[str, int]] = {}  # what is in host memory: pid → GPU → bytes
        self._kernel, self._kill = kernel, kill
        self._changed = asyncio.Event()
        self._turns: dict[int, asyncio.Lock] = {}
        self._under_way: set[asyncio.Task[Answer]] = set()

    def stands(self, pid: int) -> bool:
        """Nothing of it reaches its cards."""
        state = self._kernel.stats.get(pid)
        return self.states.get(pid, State.RUNNING) is not State.RUNNING or state is None or state.state == "T"

    async def runs(self, pid: int) -> None:
        """What a program waits for in each of its calls."""
        while self.stands(pid):
            await self._changed.wait()

    def changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.cards.changed()

    def begin(self, pid: int) -> None:
        """It has a context."""
        self.states.setdefault(pid, State.RUNNING)

    def end(self, pid: int) -> None:
        self.states.pop(pid, None)
        self._away.pop(pid, None)
        self.changed()

    def ask(self, order: str, pid: int, *more: object) -> asyncio.Task[Answer]:
        task = asyncio.create_task(self._answer(order, pid, *more))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _answer(self, order: str, pid: int, *more: object) -> Answer:
        """CUresult, the state afterwards, seconds. One call at a time; one that is frozen or hangs does not answer."""
        begun, code = asyncio.get_running_loop().time(), 0
        if order != "state":
            self.asked.append((order, pid))
            async with self._turns.setdefault(pid, asyncio.Lock()):
                while pid in self.states and (self._is_frozen(pid) or self.faults.get(order) == HANGS):
                    await self._changed.wait()
                code = await self._carry_out(order, pid, *more)
        state, seconds = self.states.get(pid), asyncio.get_running_loop().time() - begun
        return (NOT_THERE, State.UNKNOWN, seconds) if state is None else (code, state, seconds)

    def _is_frozen(self, pid: int) -> bool:
        known = self._kernel.stats.get(pid)
        return known is not None and known.state == "T"

    async def _carry_out(self, order: str, pid: int, *more: object) -> int:
        milliseconds = int(str(more[0])) if more and order != "restore" else 0
        if (state := self.states.get(pid)) is None:
            return NOT_THERE
        wanted, becomes = STEPS[order]
        if state is not wanted:
            return WRONG_STATE
        if (fault := self.faults.pop(order, "")) == PROCESS_DIES:
            self._kill(pid)
            return NOT_THERE
        if fault == FAILS:
            if order in ("checkpoint", "restore"):
                self.states[pid] = State.FAILED
            return UNKNOWN
        if order in self.refuses:
            return self.refuses[order]
        if order == "restore" and more:
            if self.pairs_refused:
                return self.pairs_refused
            self._go(pid, [str(each) for each in more])
        if order == "restore" and not self._bring_back(pid):
            return NO_ROOM
        late = 0 < milliseconds / 1000 < self.takes[order]
        await asyncio.sleep(milliseconds / 1000 if late else self.takes[order])
        if late or pid not in self.states:
            return NOT_DONE if late else NOT_THERE
        if order == "checkpoint":
            self._away[pid] = {gpu: held.pop(pid) for gpu, held in self.cards.held.items() if pid in held}
        self.states[pid] = becomes
        self.changed()
        return 0

    def _go(self, pid: int, pairs: list[str]) -> None:
        """All cards are named, as a real driver wants it."""
        names = {uuid_bytes(gpu).hex(): gpu for gpu in self.cards.cards}
        to = {names[old]: names[new] for old, new in (pair.split(":") for pair in pairs)}
        assert to.keys() == set(to.values()) == set(names.values())
        self._away[pid] = {to[gpu]: size for gpu, size in self._away.get(pid, {}).items()}
        on = self.on.setdefault(pid, {gpu: gpu for gpu in to})
        self.on[pid] = {gpu: to[now] for gpu, now in on.items()}
        self.cards.go(pid, to)

    def _bring_back(self, pid: int) -> bool:
        away = self._away.get(pid, {})
        return all(self.cards.take(gpu, pid, size) for gpu, size in away.items())


class Helper(CardHelper):
    """Its calls, deadlines and words are those of the real one; who answers is the driver above."""

    def __init__(self, driver: Driver, generation: Generation) -> None:
        super().__init__(generation=generation)
        self._driver = driver

    async def why_not(self) -> str:
        return self._driver.why_not

    async def prepare(self, workers: int) -> None: ...

    async def close(self) -> None: ...

    async def _call(self, order: str, pid: int, within: float, *more: object) -> Done:
        if order not in ("state", "unlock"):
            await self.alone()
        exchange = self._driver.ask(order, pid, *more)  # goes on, whatever becomes of who asks
        try:
            async with asyncio.timeout(within):
                await _first(exchange, pid, order)
        except TimeoutError as error:
            why = str(error) or f"did not answer a {order} within {within:g} s"
            raise CardError(Why.HUNG, pid, f"Process {pid} {why}.") from None
        return self._judge(order, pid, exchange.result())


class Guard(Guardian):
    """One that always lives, and has nobody to let go."""

    def __init__(self, generation: Generation) -> None:
        super().__init__(Path("/nonexistent"), generation)

    async def watch(self, pids: Iterable[int]) -> None:
        self._known |= set(pids)

    async def close(self) -> None: ...


def access(driver: Driver, home: Path) -> CardAccess:
    generation = Generation(home / "guardian.lock")
    return CardAccess(Helper(driver, generation), Helper(driver, generation), Guard(generation), generation)
