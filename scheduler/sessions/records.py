"""What is written down of decisions: one event for each call's answer, and for use that no message reported.

A container has a budget of events; what is beyond it goes into sums (sums.py), and what it uses once a second all the
same. When it was suspended is never left to a sum: of calls that wait together those may be, as long as one of them
stands for all, from the first that waits to the last that goes on.
"""

from collections.abc import Callable

from scheduler.core.effects import Granted, Rejected, Suspended
from scheduler.pace import Pace
from scheduler.sessions.live_containers import LiveContainer, Session
from scheduler.sessions.sums import SumKind, Sums
from scheduler.store import Store

EVENTS_A_SECOND = 10  # of a container: each is a row for ever, and most programs ask some ten times
SUM_SECONDS = 10  # the first rejected call has an event of its own; later ones within this time share one


class Records:
    """`policy` tells which one decides now. Sizes are bytes, times seconds."""

    def __init__(self, store: Store, policy: Callable[[], str], now: Callable[[], float]) -> None:
        self._store, self._policy, self._now = store, policy, now
        self._paces: dict[str, Pace] = {}  # container → its events a second
        self.sums = Sums(SUM_SECONDS, self._more)

    def tick(self) -> None:
        """To be called now and then."""
        self.sums.tick(self._now())

    def end(self, live: LiveContainer) -> None:
        """It has ended, and its last process is gone."""
        self.sums.end(live.id)
        self._paces.pop(live.id, None)

    def _may_tell(self, live: LiveContainer) -> bool:
        now = self._now()
        return not self._paces.setdefault(live.id, Pace(EVENTS_A_SECOND, now)).take(now)

    def granted(self, live: LiveContainer, session: Session, grant: Granted) -> None:
        went_on = grant.was_suspended and self._goes_on(live)
        if not went_on and not self._may_tell(live):
            self.sums.add(SumKind(live.id, grant.gpu, "accepted"), grant.bytes, self._now())
            return
        self._store.event(
            "resumed" if went_on else "accepted",
            live.id, gpu=grant.gpu, pid=session.pid, size=grant.bytes,
            used_after=self._note_use(live, grant.gpu), waited=grant.waited, policy=self._policy(),
        )  # fmt: skip

    def hung_up(self, live: LiveContainer, grant: Granted) -> None:
        """A wait that was recorded has ended, although nobody was there to be given the memory."""
        if not self._goes_on(live):
            return
        self._store.event(
            "resumed", live.id, gpu=grant.gpu, used_after=self._note_use(live, grant.gpu), waited=grant.waited,
            policy=self._policy(), detail="Its process had disconnected: the memory was returned.",
        )  # fmt: skip

    def rejected(self, live: LiveContainer, session: Session, rejection: Rejected) -> None:
        went_on = rejection.was_suspended and self._goes_on(live)
        kind = SumKind(live.id, rejection.gpu, "rejected", rejection.reason.value)
        if not went_on and self.sums.count(kind, rejection.bytes, self._now()):
            return
        self._store.event(
            "rejected", live.id, gpu=rejection.gpu, pid=session.pid, size=rejection.bytes,
            used_after=self._note_use(live, rejection.gpu),
            waited=rejection.waited if went_on else 0.0,
            policy=self._policy(), detail=rejection.reason.value,
        )  # fmt: skip

    def _more(self, kind: SumKind, count: int, largest: int) -> None:
        why = f"{kind.reason}: " if kind.reason else ""
        self._store.event(
            kind.kind, kind.container, gpu=kind.gpu, size=largest, policy=self._policy(),
            detail=f"{why}{count} more such calls in {self.sums.period:.0f} s, this the largest.",
        )  # fmt: skip

    def _goes_on(self, live: LiveContainer) -> bool:
        """A call of it waits no more. Whether that ends the recorded one: as long as others wait, one stands."""
        live.waits -= 1
        if live.waits_recorded <= live.waits:
            return False
        live.waits_recorded -= 1
        return True

    def suspended(self, live: LiveContainer, session: Session, effect: Suspended, waited: float) -> None:
        """`waited`: more than 0 for a wait that goes on from the last scheduler's time."""
        live.waits += 1
        if live.waits_recorded and not self._may_tell(live):
            return  # it is counted as what becomes of it
        live.waits_recorded += 1
        self._store.event(
            "suspended", live.id, gpu=effect.gpu, pid=session.pid, size=effect.bytes,
            used_after=self._note_use(live, effect.gpu), waited=waited, policy=self._policy(),
        )  # fmt: skip

    def not_asked_again(self, live: LiveContainer, waited: float) -> None:
        """Whatever waited under the last scheduler does not any more."""
        self._store.event(
            "resumed", live.id, waited=waited, policy=self._policy(),
            detail="The scheduler was restarted, and no call of it waits any more.",
        )  # fmt: skip

    def is_suspended(self, live: LiveContainer) -> None:
        self._store.suspended(live.id, live.suspended_since, live.suspended_before)

    def card_full(self, live: LiveContainer, session: Session, gpu: str, size: int) -> None:
        """The card itself had no memory for `size` bytes inside the lease."""
        self._store.event(
            "card_full", live.id, gpu=gpu, pid=session.pid, size=size, used_after=self._note_use(live, gpu),
            detail=f"The GPU had no memory for a granted lease ({live.physical} times): another program uses it.",
        )  # fmt: skip

    def use(self, live: LiveContainer, gpu: str, *, pid: int | None = None) -> None:
        """What the container uses more or less than by its last event: inside leases nobody tells.

        `pid`: of a process that is gone. Of many that go at once the next look at all that it uses tells.
        """
        before, used = live.reported.get(gpu, 0), live.note_peak(gpu)
        if used == before or (pid is not None and not live.finished and not self._may_tell(live)):
            return
        live.reported[gpu] = used
        kind = "accepted" if used > before else "freed"
        self._store.event(
            kind, live.id, gpu=gpu, pid=pid, size=abs(used - before), used_after=used, policy=self._policy(),
        )  # fmt: skip

    def _note_use(self, live: LiveContainer, gpu: str) -> int:
        live.reported[gpu] = live.note_peak(gpu)
        return live.reported[gpu]
