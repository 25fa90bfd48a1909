"""One process, step by step: its memory to the host's and back, whatever state it is found in.

What a process is in is asked of the driver before each step, and what was asked for before and got no answer may be
done only now, so each step is asked for again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from scheduler.card.helper import CardError, CardHelper, State, Why
from scheduler.sessions.tenants import Session

LOCK_SECONDS = 30.0  # in which what a process has given to its card must be done
SLOWEST = 256 << 20  # bytes a second; a transfer that is slower has hung
GRACE = 30.0  # seconds more
ATTEMPTS = 6  # steps between any two states, and as many again
ASKED_WITHIN = 1.0  # seconds; who asks what its card has done has its answer in microseconds, or says what is not so
LOOK = 0.002  # seconds between two looks


class Mover:
    """All raise CardError, but for one that has ended."""

    def __init__(self, card: CardHelper) -> None:
        self._card = card

    async def stop(self, session: Session) -> None:
        """Nothing of it reaches its cards, and nobody in it asks them (lease.h says why), until `back`."""
        await self._card.alone()  # first: it runs until it is locked
        session.page.hold(True)
        await self._make(session, State.LOCKED)

    @staticmethod
    async def have_answers(sessions: Collection[Session]) -> None:
        """Returns once who was asking then has the answer, or has said for too long that it has not: all together."""
        given_up = time.monotonic() + ASKED_WITHIN
        while any(each.page.inside and not each.ended for each in sessions) and time.monotonic() < given_up:  # noqa: ASYNC110 (there is no event)
            await asyncio.sleep(LOOK)

    async def out(self, session: Session) -> None:
        await self._make(session, State.CHECKPOINTED)

    async def back(self, session: Session) -> None:
        """Back on its cards, and it goes on, and may ask them: whatever becomes of others of its container."""
        await self._make(session, State.RUNNING)
        session.page.hold(False)

    async def await_answer(self, session: Session) -> None:
        """A lock that was given up may be done yet, of one that was frozen say. What comes after it undoes it."""
        if session.ended:
            return
        try:
            await self._card.unlock(session.pid, GRACE)
        except CardError as error:
            if error.why is Why.HUNG:
                raise

    async def _make(self, session: Session, wanted: State) -> None:
        for _ in range(ATTEMPTS):
            state = await self._state(session)
            if state in (wanted, State.UNKNOWN):
                return
            if state is State.FAILED:
                raise CardError(Why.FAILED, session.pid, f"The driver gave process {session.pid} up.", state)
            try:
                if state is State.CHECKPOINTED:
                    await self._card.restore(session.pid, _patience(session))
                elif state is State.RUNNING:
                    await self._card.lock(session.pid, LOCK_SECONDS)
                elif wanted is State.RUNNING:
                    await self._card.unlock(session.pid, GRACE)
                else:
                    await self._card.checkpoint(session.pid, _patience(session))
            except CardError as error:
                if error.why not in (Why.NOT_THERE, Why.WRONG_STATE):
                    raise
        raise CardError(Why.BUSY, session.pid, f"Process {session.pid} did not come to rest.")

    async def _state(self, session: Session) -> State:
        if session.ended:
            return State.UNKNOWN
        try:
            return await self._card.state(session.pid, GRACE)
        except CardError as error:
            if error.why is Why.NOT_THERE:
                return State.UNKNOWN
            raise


def _patience(session: Session) -> float:
    return GRACE + sum(lease.granted for lease in session.leases.values()) / SLOWEST
