"""The guardian: a process of its own that lets everybody go on who is stopped, when this one is gone (guardian.c).

    await guardian.watch([pid])      before it is locked: returns once the guardian knows of it
    guardian.locked([pid])           it is
    guardian.release([pid])          it is unlocked again

It is begun when it is first needed. One that dies, or does not answer, is followed by another at once, which is sent
everybody again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from scheduler.card.generation import Generation
from scheduler.card.helper import BEGIN_SECONDS, CLOSED, CardError, Why

ATTEMPTS = 3
BEAT = 1.0  # seconds from one question whether it still answers to the next
NOBODY = 0  # a pid that is no process's
ANSWERS = 2.0  # seconds; one that takes longer stands still, and is replaced
LEAVING = 2.0  # seconds in which one that has nobody to unlock has ended
PAUSE = 0.5  # seconds between two attempts to begin one
log = logging.getLogger(__name__)

Process = asyncio.subprocess.Process


class Guardian:
    """`program`: what shim/guardian is built to."""

    def __init__(self, program: Path, generation: Generation, env: Mapping[str, str] | None = None) -> None:
        self._program, self._generation, self._env = program, generation, env
        self._known: set[int] = set()
        self._locked: set[int] = set()  # of those it knows
        self._process: Process | None = None
        self._owed = 0  # answers of this one that nobody has read: who waited for them may have been cancelled
        self._talking = asyncio.Lock()
        self._minding: asyncio.Task[None] | None = None
        self._closed = False
        self._lost: Callable[[str], None] = lambda why: None

    def report_loss(self, lost: Callable[[str], None]) -> None:
        """`lost` is called when there is none, and none can be had."""
        self._lost = lost

    @property
    def pid(self) -> int | None:
        """Of the one that lives."""
        return None if self._process is None else self._process.pid

    async def watch(self, pids: Iterable[int]) -> None:
        """Returns once the guardian knows them. Raises CardError where none can be had: then nobody may be locked."""
        new = set(pids) - self._known
        self._known |= new
        try:
            async with self._talking:
                for _ in range(ATTEMPTS):
                    if self._process is None:
                        return await self._begin()  # it is sent all pids
                    if await self._tell(self._process, new):
                        return None
                raise CardError(Why.FAILED, 0, "The guardian process keeps ending.")
        except BaseException:
            self.release(new)  # nobody locks them now; later somebody else may, for another reason
            raise

    def locked(self, pids: Iterable[int]) -> None:
        """Nothing more is to come of their locks: it is over with them as soon as they have been unlocked."""
        done = set(pids) & self._known
        self._locked |= done
        self._note(b"=", done)

    def release(self, pids: Iterable[int]) -> None:
        gone = set(pids) & self._known
        self._known -= gone
        self._locked -= gone
        self._note(b"-", gone)

    def _note(self, sign: bytes, pids: Iterable[int]) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(b"".join(b"%b%d\n" % (sign, pid) for pid in pids))

    async def close(self) -> None:
        """It unlocks whom it still knows, and ends. There is none any more."""
        self._closed = True
        self._known, self._locked = set(), set()
        async with self._talking:  # never within a start: asyncio may wait for ever where one is broken off
            process, self._process = self._process, None
            if self._minding is not None:
                self._minding.cancel()
            if process is not None and process.stdin is not None:
                process.stdin.close()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), LEAVING)

    async def _begin(self) -> None:
        """Raises CardError."""
        if self._closed:
            raise CardError(Why.FAILED, 0, CLOSED)
        try:
            process = await asyncio.create_subprocess_exec(
                str(self._program), str(self._generation.fd), pass_fds=[self._generation.fd],
                stdin=-1, stdout=-1, env=self._env, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise CardError(Why.FAILED, 0, f"The guardian cannot be started: {error.strerror}.") from error
        assert process.stdout is not None
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                word, *why = (await process.stdout.readline()).decode().split(maxsplit=1) or ["cannot", "it has ended"]
        except TimeoutError:
            word, why = "cannot", [f"the guardian process was not ready within {BEGIN_SECONDS:g} s"]
        except BaseException:
            await _end(process)
            raise
        if word != "ready":
            await _end(process)
            raise CardError(Why.FAILED, 0, f"The guardian cannot be started: {''.join(why).strip()}.")
        self._process, self._owed = process, 0
        self._minding = asyncio.create_task(self._mind(process), name="guardian")
        if not await self._tell(process, set(self._known)):
            raise CardError(Why.FAILED, 0, "The guardian process keeps ending.")
        self._note(b"=", self._locked)

    async def _tell(self, process: Process, pids: set[int]) -> bool:
        """Whether it has noted them; else it is dead by now."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(ANSWERS):
                process.stdin.write(b"".join(b"+%d\n" % pid for pid in pids))
                self._owed += len(pids)
                await process.stdin.drain()
                while self._owed and (answers := await process.stdout.read(self._owed)):
                    self._owed -= len(answers)
                if not self._owed:
                    return True
        await _end(process)
        if self._process is process:
            self._process = None
        return False

    async def _listen(self, process: Process) -> None:
        """One that stands still is ended."""
        while self._process is process:
            await asyncio.sleep(BEAT)
            async with self._talking:
                if self._known and self._process is process and not await self._tell(process, {NOBODY}):
                    log.warning("the guardian did not answer, and is replaced")

    async def _mind(self, process: Process) -> None:
        """Whoever is stopped is never long without a guardian."""
        listening = asyncio.create_task(self._listen(process), name="guardian's answers")
        try:
            await process.wait()
        finally:
            listening.cancel()
        log.warning("the guardian has ended by itself (%s)", process.returncode)
        while self._known and self._process in (None, process):
            try:
                async with self._talking:
                    if self._process is process:
                        self._process = None
                    if self._process is None:
                        await self._begin()
            except CardError as error:
                log.error("%s It is tried again: until then nobody is stopped for a turn.", error)
                self._lost(str(error))
                await asyncio.sleep(PAUSE)


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
