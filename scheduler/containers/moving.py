"""One process, step by step: its memory to the host's and back, whatever state it is found in.

What a process is in is asked of the driver before each step, and what was asked for before and got no answer may be
done only now, so each step is asked for again.
"""

import asyncio
from collections.abc import Collection, Mapping
from math import inf

from scheduler import clock
from scheduler.card.gates import Gates, ranks
from scheduler.card.helper import CardError, CardHelper, State, Why, is_stopped
from scheduler.core.events import STAYS, Movable
from scheduler.core.state import Container, Mode, Stage
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer, Session
from scheduler.store import Store
from shim.binding import Sharing

LOCK_SECONDS = 30.0  # in which what the processes of a container have given to their cards must be done
SHORTEST = 1.0  # for the last of them, and for one that somebody has let go meanwhile; to the driver, none are no end
SLOWEST = 256 << 20  # bytes a second; a transfer that is slower has hung
GRACE = 30.0  # seconds more
ATTEMPTS = 6  # steps between any two states, and as many again
ASKED_WITHIN = 1.0  # seconds; who asks what its card has done has its answer in microseconds, or says what is not so
LOOK = 0.002  # seconds between two looks
ASIDE, LONGEST_ASIDE = 60.0, 3600.0  # seconds in which one that did not answer is not preempted; twice as many
STANDS = 0.5  # seconds after which one that stands still is waited for beside all else


SHARED_AS = {
    Sharing.NOW: "a call that shares it is under way",
    Sharing.EXPORTED: "exported handles",
    Sharing.IMPORTED: "imported handles",
    Sharing.IPC: "CUDA IPC",
    Sharing.POOL: "a shared memory pool",
    Sharing.PEER: "peer access",
    Sharing.MULTICAST: "multicast",
    Sharing.EXTERNAL: "memory of a graphics API",
    Sharing.HOST: "host memory in a pool or a cuMem handle",
}


def why_it_stays(live: LiveContainer) -> str:
    """Why the GPU memory of this container must not be moved to host memory; empty if nothing is known against it.

    THE rule for everything that moves memory. Its evidence is in the lease pages, so a new scheduler knows it too.
    A driver takes shared memory out without an error and refuses to bring it back (error 801; H100, driver 580).
    """
    for session in live.sessions.values():
        if not session.ended and (shared := session.page.shared):
            how = ", ".join(words for kind, words in SHARED_AS.items() if kind in shared)
            return (
                f"Process {session.pid} shares memory with another process or GPU, or with the host ({how}). "
                "The driver cannot bring such memory back from host memory."
            )
    if its := ranks(live.gates):
        if not live.movable:
            return (
                f"Process {its[0][2]} is one of {its[0][1]} ranks of NCCL, whose memory the driver cannot bring back "
                'from host memory. Launch it with "movable" if it is to be moved; it is a little slower then.'
            )
        if len({rank for rank, _, _ in its}) < its[0][1]:
            return (
                f"{len({rank for rank, _, _ in its})} of {its[0][1]} ranks of NCCL are in this container. They can be "
                "moved only together."
            )
    return ""


def note_movable(broker: Broker, store: Store) -> None:
    """Says which containers cannot be moved, and why, as soon as their lease pages do."""
    for live in broker.live_containers.values():
        why, known = why_it_stays(live), broker.state.containers.get(live.id)
        if why != live.cannot_move:
            live.cannot_move = why
            store.container(live.id, cannot_move=why)
        if known is not None and known.movable is bool(why):
            broker.tell(Movable(broker.now(), live.id, not why))


def holders(live: LiveContainer) -> list[Session]:
    return [s for s in live.sessions.values() if not s.ended and any(lease.used for lease in s.leases.values())]


def present(live: LiveContainer) -> list[Session]:
    """All that use a card, or may: a process that only knows its card cannot go on without it either."""
    return [session for session in live.sessions.values() if not session.ended]


def say_moved(store: Store, live: LiveContainer, kind: str, sizes: Mapping[str, int], detail: str) -> None:
    """The events of a move. `kind`: swapped_out or swapped_in; `sizes`: bytes by GPU."""
    back = kind == "swapped_in"
    for gpu, moved in sizes.items():
        if moved:
            live.reported[gpu] = moved if back else 0
            store.event(kind, live.id, gpu=gpu, size=moved, used_after=live.reported[gpu], detail=detail)
    if back and not any(sizes.values()) and not live.card_move:
        store.event(kind, live.id, detail="Its processes that had GPU memory have ended.")


def say_not_restored(store: Store, live: LiveContainer, error: CardError) -> None:
    why = f"Its GPU memory could not be brought back from host memory, and will not come back by itself: {error}"
    live.not_restored = why[:500]
    store.container(live.id, not_restored=live.not_restored)
    store.event("not_restored", live.id, detail=live.not_restored)


def facts_of(live: LiveContainer, core: Container | None) -> dict[str, bool]:
    """What `moves.next_step` asks about a container, but for what others know."""
    return {
        "over": live.finished or core is None,
        "lent": core is not None and core.stage is Stage.COMING,
        "wanted": live.gave_way != Mode.IDLE or live.waited_since is not None,
        "held": live.is_held,
        "frozen": live.paused,
        "killed": live.killed,
        "given_up": bool(live.not_restored),
        "undone": live.raised or bool(stopped(live)),
    }


def stopped(live: LiveContainer) -> list[Session]:
    """Those that may not be running on their cards."""
    return [session for session in live.sessions.values() if session.stopped and not session.ended]


def stays_after(live: LiveContainer, error: Exception) -> float:
    """Seconds in which it is not preempted after this; ever more where it does not answer."""
    if isinstance(error, CardError) and error.why is Why.CANNOT:
        return inf
    if isinstance(error, CardError) and error.why is Why.HUNG:
        live.unanswered += 1
        return min(ASIDE * 2.0 ** (live.unanswered - 1), LONGEST_ASIDE)
    return STAYS


class Mover:
    """All raise CardError, but for one that has ended."""

    def __init__(self, card: CardHelper) -> None:
        self._card = card

    async def stop(self, live: LiveContainer, sessions: Collection[Session]) -> None:
        """Nothing of them reaches their cards, and nobody in them asks these (lease.h says why), until `back`.

        Ranks that wait for each other are locked where they do not. How many processes there are is a program's own
        choice, and others wait meanwhile: all have LOCK_SECONDS together.
        """
        await self._card.alone()  # first: they run until they are locked
        async with Gates(lambda: live.gates).shut() as why:
            if why:
                raise CardError(Why.BUSY, 0, why)
            await self._stop(sessions)

    async def _stop(self, sessions: Collection[Session]) -> None:
        until = clock.monotonic() + LOCK_SECONDS
        for session in sessions:
            if clock.monotonic() > until:
                why = f"Work that its {len(sessions)} processes had queued on their GPUs did not end in time."
                raise CardError(Why.BUSY, session.pid, why)
            session.stopped = True
            session.page.hold(True)
            await self._make(session, State.LOCKED, until)

    @staticmethod
    async def have_answers(sessions: Collection[Session]) -> None:
        """Returns once who was asking then has the answer, or has said for too long that it has not: all together."""
        given_up = clock.monotonic() + ASKED_WITHIN
        while any(each.page.inside and not each.ended for each in sessions) and clock.monotonic() < given_up:  # noqa: ASYNC110 (there is no event)
            await asyncio.sleep(LOOK)

    async def out(self, session: Session) -> None:
        await self._make(session, State.CHECKPOINTED)

    async def back(self, session: Session) -> None:
        """Back on its cards, and it goes on, and may ask them: whatever becomes of others of its container."""
        await self._make(session, State.RUNNING)
        session.page.hold(False)
        session.stopped = False

    async def back_in_turn(self, session: Session, turn: asyncio.Lock) -> None:
        """The same for whoever has this turn, which others have while it stands still, by a signal or a debugger.

        A restore is not broken off, but of such a process nothing is transferred, and anybody can have theirs do so.
        """
        moving = asyncio.create_task(self.back(session))
        try:
            stood = False
            while not (await asyncio.wait([moving], timeout=STANDS))[0]:
                if stood and is_stopped(session.pid):
                    turn.release()
                    try:
                        await asyncio.wait([moving])
                    finally:
                        await turn.acquire()
                    break
                stood = is_stopped(session.pid)
            moving.result()
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)

    async def are_out(self, sessions: Collection[Session]) -> bool:
        """Whether none of them has anything on its cards, by the driver's word."""
        try:
            states = [await self._state(session) for session in sessions]
        except CardError:
            return False
        return all(state in (State.CHECKPOINTED, State.UNKNOWN) for state in states)

    async def await_answers(self, sessions: Collection[Session], within: float | None = None) -> dict[int, CardError]:
        """A lock that was given up may be done yet, of one that was frozen say. What comes after it undoes it.

        Session → why it did not answer within so many seconds (GRACE); raises nothing.
        """
        within = GRACE if within is None else within
        answers = await asyncio.gather(*(self._await_answer(session, within) for session in sessions))
        return {session.id: error for session, error in zip(sessions, answers, strict=True) if error is not None}

    async def _await_answer(self, session: Session, within: float) -> CardError | None:
        try:
            if not session.ended:
                await self._card.unlock(session.pid, within)
        except CardError as error:
            return error if error.why is Why.HUNG else None
        return None

    async def _make(self, session: Session, wanted: State, until: float = 0.0) -> None:
        """`until`: what it has given to its cards has so long to be done where it has to be locked, but SHORTEST."""
        for _ in range(ATTEMPTS):
            state = await self._state(session)
            if state in (wanted, State.UNKNOWN):
                return
            if state is State.FAILED:
                raise CardError(Why.FAILED, session.pid, f"The driver could not restore process {session.pid}.", state)
            try:
                if state is State.CHECKPOINTED:
                    await self._restore(session)
                elif state is State.RUNNING:
                    await self._card.lock(session.pid, max(SHORTEST, until - clock.monotonic()))
                elif wanted is State.RUNNING:
                    await self._card.unlock(session.pid, GRACE)
                else:
                    await self._card.checkpoint(session.pid, _patience(session))
            except CardError as error:
                if error.why not in (Why.NOT_THERE, Why.WRONG_STATE):
                    raise
        raise CardError(Why.BUSY, session.pid, f"Process {session.pid} did not become idle.")

    async def _restore(self, session: Session) -> None:
        """On its card, or on another one: as the driver takes it. One that it refuses stays where it is."""
        for pairs in session.pairs or [()]:
            try:
                await self._card.restore(session.pid, _patience(session), pairs)
            except CardError as error:
                if not pairs or error.why is not Why.NOT_THERE or error.state is not State.CHECKPOINTED:
                    raise
            else:
                session.pairs = ()
                return
        why = f"The driver does not restore process {session.pid} on another GPU (CUDA error 1)."
        raise CardError(Why.CANNOT, session.pid, why, State.CHECKPOINTED)

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
