"""Around the arbiter: tells it what happens, and carries out what it answers on pages and connections.

Everything here happens at once, in the event loop's thread, without waiting for anything: a decision is made and
carried out before the next message is read. What is worth knowing is told to the `Journal`, which only remembers it.

Two orders matter. Taking back (`TakeBack`) is answered with `Returned` before anything else is handled, because the
arbiter judges by it. And a grant that cannot be delivered is returned only after all effects of its event, so that
the arbiter is never told of a change that it has not finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from scheduler.core import arbiter
from scheduler.core.events import (
    Admitted,
    ContainerAdded,
    ContainerEnded,
    Effect,
    Event,
    Granted,
    Needed,
    OverheadMeasured,
    Pressure,
    QuotaChanged,
    Reason,
    Refused,
    Rejected,
    Reordered,
    Returned,
    SessionEnded,
    SessionOpened,
    Suspended,
    TakeBack,
)
from scheduler.core.state import State
from scheduler.sessions.lease_pages import Lease
from scheduler.sessions.tenants import Session, Tenant
from scheduler.sessions.wire import CODES, Code, Frame, Type


class Journal(Protocol):
    """What the broker tells; store.py writes it down. No call may block."""

    def event(
        self, kind: str, container: str, *, gpu: str = "", pid: int | None = None, size: int = 0,
        used_after: int | None = None, waited: float = 0.0, policy: str = "", detail: str = "",
    ) -> None: ...  # fmt: skip

    def suspended(self, container: str, since: float | None, before: float) -> None:
        """`since`: monotonic, None when it is not suspended any more. `before`: seconds of all ended waits."""


class Broker:
    """Knows every tenant and session, and the arbiter's state. `contexts`: GPU → what a CUDA context takes there."""

    def __init__(
        self,
        journal: Journal,
        contexts: Mapping[str, int],
        state: State,
        changed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = state
        self.tenants: dict[str, Tenant] = {}
        self.sessions: dict[int, Session] = {}
        self.now = clock
        self._journal = journal
        self.contexts = contexts
        self._changed = changed  # called with the container whose memory or waiting has changed
        self._leases: dict[str, dict[int, Lease]] = {}  # GPU → session → lease
        self._pressed: set[str] = set()
        self._order: tuple[str, ...] = ()  # by an admin; containers leave it when they do not wait any more
        self._waited_lately: set[str] = set()
        self._later: deque[Event] = deque()
        self._telling = False

    # ---- events and effects ----

    def tell(self, event: Event) -> list[Effect]:
        """Lets the arbiter decide and carries it out. Returns all effects, for those who want an answer."""
        if self._telling:
            raise RuntimeError("an event within an event: only Returned may answer TakeBack")
        effects: list[Effect] = []
        self._telling = True
        try:
            self._decide(event, effects)
            while self._later:
                self._decide(self._later.popleft(), effects)
        finally:
            self._telling = False
        return effects

    def _decide(self, event: Event, all_effects: list[Effect]) -> None:
        waiting = self.state.waiting
        self.state, effects = arbiter.handle(self.state, event)
        for effect in effects:
            all_effects.append(effect)
            match effect:
                case TakeBack(gpu):
                    taken = self._take_back(gpu)
                    self._decide(Returned(self.now(), gpu, taken, all=True), all_effects)
                case Pressure(gpu, on):
                    self._press(gpu, on)
                case Granted():
                    self._granted(effect)
                case Rejected():
                    self._rejected(effect)
                case Suspended():
                    self._suspended(effect)
                case Admitted() | Refused():
                    pass  # the answer to whoever asked
        if self.state.waiting is not waiting:
            self._update_waits()

    def _take_back(self, gpu: str) -> dict[int, int]:
        leases = self._leases.get(gpu, {})
        return {session: size for session, lease in leases.items() if (size := lease.take_back())}

    def _press(self, gpu: str, on: bool) -> None:
        (self._pressed.add if on else self._pressed.discard)(gpu)
        for lease in self._leases.get(gpu, {}).values():
            lease.set_pressure(on)

    def _granted(self, grant: Granted) -> None:
        session = self.sessions.get(grant.session)
        connection = session.asked.pop(grant.serial, None) if session else None
        if session is None or connection is None or not connection.open:
            # Whoever asked is not there any more; should it come back, it will ask again.
            size = grant.bytes + grant.extra
            self._later.append(Returned(self.now(), grant.gpu, {grant.session: size}))
            return
        tenant = self.tenants[grant.container]
        self._expect_no_more(tenant)
        self._changed(tenant.id)
        session.leases[grant.gpu].grant(grant.bytes, idle=grant.extra)
        slot = list(session.leases).index(grant.gpu)
        connection.send(Frame(Type.GRANTED, slot, grant.serial, Code.OK, grant.bytes))
        self._journal.event(
            "resumed" if grant.was_suspended else "accepted",
            grant.container,
            gpu=grant.gpu,
            pid=session.pid,
            size=grant.bytes,
            used_after=self._note_use(tenant, grant.gpu),
            waited=grant.waited,
            policy=self.state.policy,
        )

    def _rejected(self, rejection: Rejected) -> None:
        session = self.sessions.get(rejection.session)
        if session is None:
            return
        if rejection.reason is Reason.WAITED_TOO_LONG:
            # What the last scheduler let wait has been answered by this; the next call waits anew.
            self._expect_no_more(self.tenants[rejection.container])
        if connection := session.asked.pop(rejection.serial, None):
            slot = list(session.leases).index(rejection.gpu)
            connection.send(Frame(Type.REJECTED, slot, rejection.serial, CODES[rejection.reason]))
        if session.ended and not rejection.was_suspended:
            return  # it ended with its process; nobody was told no
        self._journal.event(
            "rejected",
            rejection.container,
            gpu=rejection.gpu,
            pid=session.pid,
            size=rejection.bytes,
            used_after=self._note_use(self.tenants[rejection.container], rejection.gpu),
            waited=rejection.waited if rejection.was_suspended else 0.0,
            policy=self.state.policy,
            detail=rejection.reason.value,
        )

    def _suspended(self, effect: Suspended) -> None:
        tenant = self.tenants[effect.container]
        waited = 0.0
        if tenant.wait_told and tenant.waited_since is not None:
            # The first call that asks again stands for all that waited when the last scheduler ended.
            tenant.wait_told, waited = False, max(1e-3, self.now() - tenant.waited_since)
        self._journal.event(
            "suspended",
            effect.container,
            gpu=effect.gpu,
            pid=self.sessions[effect.session].pid,
            size=effect.bytes,
            used_after=self._note_use(tenant, effect.gpu),
            waited=waited,
            policy=self.state.policy,
        )

    def card_full(self, session: Session, gpu: str, size: int) -> None:
        """Writes down that the card itself had no memory for `size` bytes inside the lease."""
        self._journal.event(
            "card_full", session.container, gpu=gpu, pid=session.pid, size=size,
            used_after=self._note_use(self.tenants[session.container], gpu),
            detail=f"The card had no memory inside a lease ({session.physical} times): something else is on it.",
        )  # fmt: skip

    def _note_use(self, tenant: Tenant, gpu: str) -> int:
        tenant.told[gpu] = tenant.note_peak(gpu)
        return tenant.told[gpu]

    def tell_use(self, tenant: Tenant, gpu: str, *, pid: int | None = None) -> None:
        """Writes down what the container uses more or less than by its last event: inside leases nobody tells."""
        before = tenant.told.get(gpu, 0)
        used = self._note_use(tenant, gpu)
        if used != before:
            kind = "accepted" if used > before else "freed"
            self._journal.event(
                kind, tenant.id, gpu=gpu, pid=pid, size=abs(used - before), used_after=used, policy=self.state.policy,
            )  # fmt: skip

    def _update_waits(self) -> None:
        """Brings up to date who is suspended: every container with a call that waits although all was tried."""
        since: dict[str, float] = {}
        for request in self.state.waiting:
            if request.suspended:
                since[request.container] = min(request.since, since.get(request.container, request.since))
        for tenant in self.tenants.values():
            began = since.get(tenant.id)
            if (began is None) is (tenant.suspended_since is None) or (began is None and tenant.waited_since):
                continue
            if began is None and tenant.suspended_since is not None:
                tenant.suspended_before += max(0.0, self.now() - tenant.suspended_since)
            tenant.suspended_since = began
            self._journal.suspended(tenant.id, began, tenant.suspended_before)
        for container in since:
            self._changed(container)  # also when only its place in the queue is another one
        if any(not request.placed and request.container in self._order for request in self.state.waiting):
            # A program asks for its context first and its memory next: its place is kept from one call to the other.
            self._later.append(Reordered(self.now(), self._order))

    def reorder(self, containers: tuple[str, ...]) -> Refused | None:
        self._order = containers
        self._waited_lately = set(containers)
        return self.ask(Reordered(self.now(), containers))

    def age_order(self) -> None:
        """To be called each second: who has waited neither now nor then has left the queue, and its place with it."""
        waiting = {request.container for request in self.state.waiting}
        self._order = tuple(id_ for id_ in self._order if id_ in waiting | self._waited_lately)
        self._waited_lately = waiting

    def stop_expecting(self) -> None:
        """Whoever waited when the last scheduler ended and has not asked again by now does not wait any more."""
        for tenant in self.tenants.values():
            self._expect_no_more(tenant)
        self._update_waits()

    def _expect_no_more(self, tenant: Tenant) -> None:
        """What went on from the last scheduler's time is over, or is a wait like any other."""
        since, tenant.waited_since = tenant.waited_since, None
        if tenant.wait_told and since is not None:
            tenant.wait_told = False
            self._journal.event(
                "resumed", tenant.id, waited=max(0.0, self.now() - since), policy=self.state.policy,
                detail="The scheduler was restarted, and no call of it waits any more.",
            )  # fmt: skip
            self._update_waits()

    # ---- containers ----

    def add(self, tenant: Tenant, event: ContainerAdded) -> Refused | None:
        """Admits a container; the refusal if it may not be."""
        self.tenants[tenant.id] = tenant
        if refusal := self.ask(event):
            del self.tenants[tenant.id]
            return refusal
        return None

    def change_quota(self, tenant: Tenant, quota: Mapping[str, int]) -> Refused | None:
        if refusal := self.ask(QuotaChanged(self.now(), tenant.id, quota)):
            return refusal
        tenant.quota = {gpu: quota[gpu] for gpu in tenant.quota}
        self.collect_excess(tenant)
        self.show(tenant)
        return None

    def ask(self, event: Event) -> Refused | None:
        """Tells an event that may be refused; the refusal if it was."""
        return next((effect for effect in self.tell(event) if isinstance(effect, Refused)), None)

    def end(self, tenant: Tenant) -> None:
        """The container has ended. It is forgotten when its last process's memory is back."""
        tenant.finished = True
        if tenant.waited_since is not None:  # under the last scheduler; the end is the end of that, too
            tenant.waited_since, tenant.wait_told = None, False
            self._update_waits()
        self._forget_if_gone(tenant)

    def _forget_if_gone(self, tenant: Tenant) -> None:
        if tenant.finished and not tenant.sessions and self.tenants.pop(tenant.id, False):
            self.tell(ContainerEnded(self.now(), tenant.id))
            self._changed(tenant.id)

    def show(self, tenant: Tenant, *sessions: Session) -> None:
        """Brings what the container's pages display up to date, or only those of these sessions."""
        places = tenant.places(self.contexts)
        used = {gpu: tenant.used(gpu) for gpu in tenant.quota}
        for session in sessions or tenant.sessions.values():
            for place, lease in zip(places, session.leases.values(), strict=True):
                lease.show(place, elsewhere=used[place.gpu] - lease.used)

    # ---- sessions ----

    def open(self, session: Session) -> None:
        """A process is known from now on, with what its leases hold already."""
        tenant = self.tenants[session.container]
        self.sessions[session.id] = tenant.sessions[session.id] = session
        for gpu, lease in session.leases.items():
            self._leases.setdefault(gpu, {})[session.id] = lease
            lease.set_pressure(gpu in self._pressed)
        leased = {gpu: lease.granted for gpu, lease in session.leases.items() if lease.granted}
        self.tell(SessionOpened(self.now(), session.id, tenant.id, leased))
        self.show(tenant, session)

    def close(self, session: Session) -> None:
        """The card no longer shows the process: its whole lease comes back."""
        tenant = self.tenants[session.container]
        for gpu in session.leases:
            tenant.note_peak(gpu)
        del tenant.sessions[session.id]
        for gpu in session.leases:
            del self._leases[gpu][session.id]
        self.tell(SessionEnded(self.now(), session.id))
        del self.sessions[session.id]  # last: the end of a call of it that waited was still to be written down
        for gpu in session.leases:
            self.tell_use(tenant, gpu, pid=session.pid)
        self._changed(tenant.id)
        self._forget_if_gone(tenant)

    def need(self, session: Session, serial: int, gpu: str, size: int) -> None:
        since = self.tenants[session.container].waited_since
        self.tell(Needed(self.now(), session.id, serial, gpu, size, since=since))

    def undelivered(self, session: Session, gpu: str, size: int) -> None:
        """A grant has been carried out, but the process will never learn of it."""
        session.leases[gpu].free(size)
        self.collect(gpu, [session])

    def collect(self, gpu: str, sessions: Iterable[Session]) -> None:
        """Takes idle headroom back, if anybody waits for it."""
        if gpu not in self._pressed:
            return
        if taken := {each.id: size for each in sessions if (size := each.leases[gpu].take_back())}:
            self.tell(Returned(self.now(), gpu, taken))

    def collect_excess(self, tenant: Tenant) -> None:
        """Takes back headroom that the quota has no room for: it was lowered, or overhead was found."""
        for gpu, quota in tenant.quota.items():
            excess = tenant.granted(gpu) - quota
            taken: dict[int, int] = {}
            for session in tenant.sessions.values():
                if excess > 0 and (got := session.leases[gpu].take_back(excess)):
                    taken[session.id] = got
                    excess -= got
            if taken:
                self.tell(Returned(self.now(), gpu, taken))

    def overhead(self, session: Session, gpu: str, size: int) -> None:
        """The card shows `size` bytes more for this process than it was charged; negative: less again."""
        lease = session.leases[gpu]
        if size < 0:
            lease.discharge(-size)
            self.collect(gpu, [session])
        elif rest := lease.charge(size):
            lease.grant(rest)
            self.tell(OverheadMeasured(self.now(), session.id, gpu, rest))
