"""The card helper: CUDA's checkpoint calls on other processes, each with a deadline, off the scheduler's loop.

A call into the driver cannot be broken off, and one on a frozen or broken process never returns. So each is made by a
worker, a process of its own (worker.py), which does one at a time: when the deadline passes the worker is ended and the
next call gets another. Workers are kept for the next call, because a driver takes 0.1 s to begin, and because each
lets go on whom it has stopped for a turn when this process is gone. A process that is stopped (by a signal, a debugger)
answers nothing, and anybody can stop their own: it is not waited for until the deadline, since others wait meanwhile.
But a restore is, because breaking it off loses the memory.

    running --lock--> locked --checkpoint--> checkpointed --restore--> locked --unlock--> running

Nothing in here decides anything, and nothing is remembered: the state of a process is asked of the driver.
"""

import asyncio
import contextlib
import enum
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scheduler import proc
from scheduler.card.generation import Generation
from scheduler.gpus import uuid_bytes

WORKER = Path(__file__).with_name("worker.py")
BEGIN_SECONDS = 60.0  # until a worker is ready: the first use of a card after a boot can take long
ATTEMPTS = 3  # to begin a worker, where it is killed
LEAVING = 2.0  # seconds at the end in which last calls may come to theirs
LOOK = 0.25  # seconds between two looks at a process that does not answer
MOST_ASKED = 512  # of a process that are looked at
log = logging.getLogger(__name__)


class State(enum.IntEnum):
    """CUprocessState. `UNKNOWN`: it could not be asked."""

    UNKNOWN = -1
    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class Why(enum.Enum):
    """Why a call did not do what it should."""

    NO_CALLS = "no_calls"
    HUNG = "hung"
    BUSY = "busy"
    CANNOT = "cannot"
    NO_ROOM = "no_room"
    NOT_THERE = "not_there"
    WRONG_STATE = "wrong_state"
    FAILED = "failed"


# CUresult → why, and what that means for people.
MEANS: Mapping[int, tuple[Why, str]] = {
    1: (Why.NOT_THERE, "it does not use a card, or has ended"),
    2: (Why.NO_ROOM, "the card has no room for what it had there"),
    401: (Why.WRONG_STATE, "it is already locked, or not locked yet"),
    600: (Why.BUSY, "work that it had queued on the GPU did not end in time"),
    801: (Why.CANNOT, "it uses managed memory, memory shared between processes, or MPS, which cannot be moved"),
}


CLOSED = "The scheduler is ending."

Answer = tuple[int, State, float]  # CUresult, the state afterwards, and the seconds that it took


class CardError(Exception):
    """A call on `pid` that failed; the message is for people. `state` is what the process is in afterwards."""

    def __init__(self, why: Why, pid: int, message: str, state: State = State.UNKNOWN) -> None:
        super().__init__(message)
        self.why, self.pid, self.state = why, pid, state

    @property
    def nothing_to_unlock(self) -> bool:
        """Of an unlock that failed: the process is not locked, or has ended. Else it may be locked still."""
        return self.why is Why.NOT_THERE or (self.why is Why.WRONG_STATE and self.state is not State.LOCKED)

    @property
    def is_final(self) -> bool:
        """Of a restore: the driver has answered with an error that trying again does not change."""
        return self.state is State.CHECKPOINTED and self.why in (Why.CANNOT, Why.FAILED)


@dataclass(frozen=True, slots=True)
class Done:
    """A call that succeeded: the state afterwards, and the seconds it took."""

    state: State
    seconds: float


class CardHelper:
    """Makes the calls. `env` is added to the workers' environment. At most `at_once` at a time, besides unlocks.

    Of a `generation`, it locks and moves nobody before all of the one before has ended.
    """

    def __init__(
        self, env: Mapping[str, str] | None = None, generation: Generation | None = None, at_once: int = 16
    ) -> None:
        self._env, self._generation = env, generation
        self._idle: list[asyncio.subprocess.Process] = []
        self._busy: set[asyncio.subprocess.Process] = set()
        self._left: set[asyncio.subprocess.Process] = set()  # each killed, or within its last call
        self._stopped: dict[int, asyncio.subprocess.Process] = {}  # pid → whose worker lets it go if we are gone
        self._places = asyncio.Semaphore(at_once)
        self._closed = False

    async def alone(self) -> None:
        """Returns once all of the generation before has ended: a call that locks or moves somebody waits for that."""
        if self._generation is not None:
            await self._generation.alone()

    async def why_not(self) -> str:
        """A sentence why this machine cannot do it; empty if it can."""
        why = ""
        for _ in range(ATTEMPTS):  # one that is killed as it begins says nothing about the machine
            try:
                await self._add()  # the first call need not wait for one
            except CardError as error:
                why = str(error)
                if error.why is not Why.FAILED:
                    break
            else:
                return ""
        return why

    async def prepare(self, workers: int) -> None:
        """So many calls at once need not wait for a worker to begin. Raises CardError."""
        while len(self._idle) + len(self._busy) < workers:
            await self._add()

    async def state(self, pid: int, within: float) -> State:
        """Raises CardError, as all of these do. `within` is the deadline in seconds."""
        return (await self._call("state", pid, within)).state

    async def lock(self, pid: int, within: float) -> Done:
        """Nothing new of the process reaches its cards; returns when what it had given them is done.

        A lock that takes too long is taken back by the driver itself; one that even so does not return has hung.
        """
        return await self._call("lock", pid, within + 1.0, int(within * 1000))

    async def stop(self, pid: int, within: float) -> Done:
        """The same for a turn: when this process has ended, however that came, it is unlocked."""
        return await self._call("stop", pid, within + 1.0, int(within * 1000))

    async def checkpoint(self, pid: int, within: float) -> Done:
        """What a locked process has on its cards goes to the host's memory, which counts as the process's own."""
        return await self._call("checkpoint", pid, within)

    async def restore(self, pid: int, within: float, pairs: Sequence[tuple[str, str]] = ()) -> Done:
        """The other way; it is locked then. There must be room.

        `pairs`: old and new card, by UUID, of all cards of this host; none: each on its own.
        """
        words = [f"{uuid_bytes(old).hex()}:{uuid_bytes(new).hex()}" for old, new in pairs]
        return await self._call("restore", pid, within, *words)

    async def unlock(self, pid: int, within: float) -> Done:
        try:
            done = await self._call("unlock", pid, within)
        except CardError as error:
            if error.nothing_to_unlock:
                self.forget(pid)
            raise
        self.forget(pid)
        return done

    def forget(self, pid: int) -> None:
        """Who has stopped a process lets it go when this one is gone, but not whom another has let go since: it may be
        locked again by then, to be moved. One whose unlock has failed is not forgotten; one that has ended is.
        """
        whose = self._stopped.pop(pid, None)
        if whose is not None and whose.stdin is not None:
            whose.stdin.write(b"forget %d\n" % pid)  # to one that has ended: nobody minds

    async def close(self) -> None:
        """The workers end, and let go on whom they have stopped. A call under way is brought to its end before that.

        No more begin.
        """
        self._closed = True
        idle, self._idle = self._idle, []
        for worker in (*idle, *self._busy):
            self._leave(worker)
        ends = [asyncio.create_task(worker.wait()) for worker in self._left]
        if ends:
            _, hung = await asyncio.wait(ends, timeout=LEAVING)
            for end in hung:
                end.cancel()
        for worker in idle:  # one that it has stopped is frozen, and the next scheduler does not wait for that
            await self._end(worker)

    async def _call(self, order: str, pid: int, within: float, *more: object) -> Done:
        if order not in ("state", "unlock"):
            await self.alone()
        # Whoever is stopped never waits to be let go for others that are slow to be stopped.
        async with contextlib.nullcontext() if order == "unlock" else self._places:
            self._idle = [worker for worker in self._idle if worker.returncode is None]
            worker = self._idle.pop() if self._idle else await self._begin()
            self._busy.add(worker)
            exchange = asyncio.create_task(self._ask(worker, order, pid, *more))
            try:
                async with asyncio.timeout(within):
                    await _first(exchange, pid, order)
                answer = exchange.result()
            except TimeoutError as error:
                await self._end(worker)
                why = str(error) or f"did not answer a {order} within {within:g} s"
                raise CardError(Why.HUNG, pid, f"Process {pid} {why}.") from None
            except asyncio.CancelledError:
                self._leave(worker)  # who asked has gone; what was asked for goes on
                raise
            except Exception:  # of ours; whoever asked this worker next would have the answer to this
                log.exception("a %s of process %d", order, pid)
                answer = None
            finally:
                exchange.cancel()
                self._busy.discard(worker)
            if order == "stop" and answer is not None and answer[0] == 0:
                if self._stopped.get(pid) is not worker:
                    self.forget(pid)  # somebody else has let it go, or it is another one
                self._stopped[pid] = worker
            if answer is None or worker.returncode is not None:
                await self._end(worker)
            elif self._closed:
                self._leave(worker)  # not killed: it may have to let somebody go
            else:
                self._idle.append(worker)
        return self._judge(order, pid, answer)

    async def _ask(self, worker: asyncio.subprocess.Process, *words: object) -> Answer | None:
        """None: it has ended, or says what nobody understands."""
        try:
            code, state, seconds = await self._exchange(worker, *words)
            return int(code), State(int(state)), float(seconds)
        except ValueError:
            return None

    async def _exchange(self, worker: asyncio.subprocess.Process, *words: object) -> list[str]:
        assert worker.stdin is not None
        assert worker.stdout is not None
        if words:
            with contextlib.suppress(ConnectionError):
                worker.stdin.write((" ".join(map(str, words)) + "\n").encode())
                await worker.stdin.drain()
        return (await worker.stdout.readline()).decode().split(maxsplit=2)

    def _judge(self, order: str, pid: int, answer: Answer | None) -> Done:
        if answer is None:
            raise CardError(Why.FAILED, pid, f"The helper was ended during a {order} of process {pid}.")
        code, state, seconds = answer
        if code == 0:
            return Done(state, seconds)
        why, means = MEANS.get(code, (Why.FAILED, f"CUDA error {code}"))
        raise CardError(why, pid, f"Process {pid}: the {order} failed: {means}.", state)

    async def _add(self) -> None:
        """Raises CardError."""
        worker = await self._begin()
        self._idle.append(worker)  # which is another list now, if somebody has called meanwhile

    async def _begin(self) -> asyncio.subprocess.Process:
        """Raises CardError."""
        worker = await self._start()
        if self._closed:  # meanwhile
            await self._end(worker)
            raise CardError(Why.HUNG, 0, CLOSED)
        return worker

    async def _start(self) -> asyncio.subprocess.Process:
        if self._closed:
            raise CardError(Why.HUNG, 0, CLOSED)
        try:
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(WORKER), pass_fds=[self._generation.fd] if self._generation else [],
                stdin=-1, stdout=-1, env=self._env, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise CardError(Why.HUNG, 0, f"No process can be started for it: {error.strerror}.") from error
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                word, *rest = (await self._exchange(worker)) or [""]
        except TimeoutError:
            await self._end(worker)
            raise CardError(Why.HUNG, 0, f"The driver did not begin within {BEGIN_SECONDS:g} s.") from None
        except BaseException:
            await self._end(worker)
            raise
        if word != "ready":
            await self._end(worker)
            if not word:
                raise CardError(Why.FAILED, 0, "The helper was ended as it began.")
            raise CardError(Why.NO_CALLS, 0, f"CUDA's checkpoint calls cannot be used here: {' '.join(rest)}.")
        return worker

    def _leave(self, worker: asyncio.subprocess.Process) -> None:
        """Nothing more comes: it ends when its call has."""
        assert worker.stdin is not None
        if not self._closed:  # whom it has stopped is this process's to let go, and may be moved by then
            worker.stdin.write(b"forget\n")
        worker.stdin.close()
        self._forget(worker)

    async def _end(self, worker: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        self._forget(worker)  # who waits here may be cancelled; `close` waits then
        await worker.wait()

    def _forget(self, worker: asyncio.subprocess.Process) -> None:
        self._left = {each for each in self._left if each.returncode is None} | {worker}


async def _first(exchange: asyncio.Task[Answer | None], pid: int, order: str) -> None:
    """Until there is an answer. Raises TimeoutError where none will come, as the process is stopped."""
    looks = 0
    while not (await asyncio.wait([exchange], timeout=LOOK))[0]:
        looks = looks + 1 if order != "restore" and is_stopped(pid) else 0
        if looks > 1:
            raise TimeoutError(f"is stopped, by a signal or a debugger, and cannot answer a {order}")


def is_stopped(pid: int, states: str = "Tt") -> bool:
    """By a signal, or a debugger: it cannot answer, and may go on. So may one that cannot be looked at now.

    One thread in such a state is enough: the driver answers by a thread of its own, and a debugger can stop that alone.
    How many threads there are is the program's choice; the first ones are looked at, which the driver's are among.
    """
    try:
        return any(each in states for each in proc.states(pid, MOST_ASKED))
    except OSError:
        return True
