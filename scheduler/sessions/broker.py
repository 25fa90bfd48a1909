"""Around the arbiter: tells it what happens, and carries out what it answers on pages and connections.

Everything here happens at once, in the event loop's thread, without waiting for anything: a decision is made and
carried out before the next message is read.

Three orders matter. Taking back (`TakeBack`) is answered with `Returned` before anything else is handled, because the
arbiter judges by it. A grant that cannot be delivered is returned only after all effects of its event, so that the
arbiter never hears of a change that it has not finished. And a grant is in the page before it is sent, so that it is
sent again if it is not heard (lease.h).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from scheduler import clock
from scheduler.core import arbiter
from scheduler.core.changes import has_room
from scheduler.core.effects import (
    Admitted,
    Effect,
    Granted,
    Preempt,
    Pressure,
    Promised,
    Reason,
    Refused,
    Rejected,
    Relocate,
    Restore,
    Suspended,
    TakeBack,
)
from scheduler.core.events import (
    ContainerPaused,
    ContainerResumed,
    Event,
    Needed,
    OverheadMeasured,
    Reordered,
    Returned,
    SwapInRequested,
    SwappedOut,
    WaitOver,
)
from scheduler.core.state import State
from scheduler.sessions.connection import Connection
from scheduler.sessions.lease_pages import Lease
from scheduler.sessions.live_containers import LiveContainer, Session
from scheduler.sessions.records import Records
from scheduler.sessions.waits import Waits
from scheduler.sessions.wire import CODES, Code, Frame, Type
from scheduler.store import Store

NO_CARDS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is called, in the loop's thread, before the next message is read."""

    changed: Callable[[str], None]  # a container's memory or waiting has changed
    answered: Callable[[LiveContainer], None]  # fewer of its calls are open
    restore: Callable[[str], None]  # there is room for all that a container had
    preempt: Callable[[Preempt | Relocate], None]  # one is to be moved out, or to another card
    promised: Callable[[], None]  # a planned launch may begin
    took: Callable[[float], None]  # seconds that a decision took


class Broker:
    """Knows live containers, sessions and the arbiter's state. `contexts`: GPU → what a CUDA context takes there."""

    def __init__(self, store: Store, contexts: Mapping[str, int], state: State, listeners: Listeners) -> None:
        self.state = state
        self.live_containers: dict[str, LiveContainer] = {}
        self.planned: Mapping[str, tuple[str, float]] = {}  # stand-in → its launch's name, and time limit (inf: none)
        self.ended: list[LiveContainer] = []  # lately: NVML still reports what their processes computed
        self.sessions: dict[int, Session] = {}
        self.leases: dict[str, dict[int, Lease]] = {}  # GPU → session → lease
        self.pressed: set[str] = set()
        self.unseen: set[int] = set()  # processes that the take-over could not look at yet: they may have a page
        self.contexts = contexts
        self.changed = listeners.changed
        self._to = listeners
        self.records = Records(store, lambda: self.state.policy, self.now)
        self._later: deque[Event] = deque()
        self._telling = False
        self.waits = Waits(
            self.live_containers, lambda: self.state, self.records, self.now, self.changed, self._later.append
        )

    @staticmethod
    def now() -> float:
        return clock.monotonic()

    @property
    def names(self) -> dict[str, str]:
        """Of containers, and of planned launches that wait with them."""
        planned = {id_: name for id_, (name, _) in self.planned.items()}
        return planned | {id_: live.name for id_, live in self.live_containers.items()}

    # ---- events and effects ----

    def tell(self, event: Event) -> list[Effect]:
        """Lets the arbiter decide and carries it out. Returns all effects, for those who want an answer."""
        if self._telling:
            raise RuntimeError("an event within an event: only Returned may answer TakeBack")
        effects: list[Effect] = []
        begun = time.perf_counter()
        self._telling = True
        try:
            self._decide(event, effects)
            while self._later:
                self._decide(self._later.popleft(), effects)
        finally:
            self._telling = False
        self._to.took(time.perf_counter() - begun)
        return effects

    def ask(self, event: Event) -> Refused | None:
        """Tells the core an event that it may refuse. Returns the refusal, or None."""
        return next((effect for effect in self.tell(event) if isinstance(effect, Refused)), None)

    def _decide(self, event: Event, all_effects: list[Effect]) -> None:
        waiting = self.state.waiting
        self.state, effects = arbiter.handle(self.state, event)
        for effect in effects:
            all_effects.append(effect)
            match effect:
                case TakeBack(gpu):
                    taken = self._take_back(gpu)
                    self._decide(Returned(event.now, gpu, taken, all=True), all_effects)
                case Pressure(gpu, on):
                    self._press(gpu, on)
                case Granted():
                    self._granted(effect)
                case Rejected():
                    self._rejected(effect)
                case Suspended(session, _, container):
                    live = self.live_containers[container]
                    waited = self.waits.gone_on(live)
                    self.records.suspended(live, self.sessions[session], effect, waited)
                case Restore(container):
                    self._to.restore(container)
                case Promised():
                    self._to.promised()
                case Preempt() | Relocate():
                    self._to.preempt(effect)
                case Admitted() | Refused():
                    pass  # the answer to whoever asked
        if self.state.waiting is not waiting:
            self.waits.update()

    def _take_back(self, gpu: str) -> dict[int, int]:
        leases = self.leases.get(gpu, {})
        return {session: size for session, lease in leases.items() if (size := lease.take_back())}

    def _press(self, gpu: str, on: bool) -> None:
        (self.pressed.add if on else self.pressed.discard)(gpu)
        for lease in self.leases.get(gpu, {}).values():
            lease.set_pressure(on)

    def _granted(self, grant: Granted) -> None:
        session = self.sessions.get(grant.session)
        if grant.serial < 0:
            self._granted_back(grant)
            return
        connection = self._asker(session, grant.serial) if session else None
        if session is None or connection is None or not connection.open:
            # Whoever asked is not there any more; should it come back, it will ask again.
            size = grant.bytes + grant.extra
            self._later.append(Returned(self.now(), grant.gpu, {grant.session: size}))
            if grant.was_suspended:
                self.records.hung_up(self.live_containers[grant.container], grant)
            return
        live = self.live_containers[grant.container]
        self.waits.over(live)
        self.changed(live.id)
        lease = session.leases[grant.gpu]
        lease.grant(grant.bytes, idle=grant.extra)
        connection.send(Frame(Type.GRANTED, lease.index, grant.serial, Code.OK, grant.bytes))
        self.records.granted(live, session, grant)

    def _asker(self, session: Session, serial: int) -> Connection | None:
        """Where the answer to this call goes, if its process is still there; the call is open no longer."""
        live = self.live_containers[session.container]
        if serial in session.asked:
            live.open_calls -= 1
            self._to.answered(live)
        return session.asked.pop(serial, None)

    def _granted_back(self, grant: Granted) -> None:
        """No program has asked, and the page has it already."""
        live, session = self.live_containers[grant.container], self.sessions[grant.session]
        self.waits.over(live)
        session.leases[grant.gpu].bring_back(grant.bytes)
        self.changed(live.id)
        if grant.was_suspended:
            self.records.granted(live, session, grant)

    def _rejected(self, rejection: Rejected) -> None:
        session = self.sessions.get(rejection.session)
        if session is None:
            return
        live = self.live_containers[rejection.container]
        if rejection.reason is Reason.WAITED_TOO_LONG:
            # What the last scheduler let wait has been answered by this; the next call waits anew.
            self.waits.over(live)
        if connection := self._asker(session, rejection.serial):
            slot = session.leases[rejection.gpu].index
            connection.send(Frame(Type.REJECTED, slot, rejection.serial, CODES[rejection.reason]))
        if not session.ended or rejection.was_suspended:  # else the process had gone: no rejection was delivered
            self.records.rejected(live, session, rejection)

    # ---- what processes say and do ----

    def need(self, session: Session, serial: int, gpu: str, size: int, asker: Connection) -> None:
        """A call of this process asks for `size` bytes; the answer goes to `asker`."""
        session.asked[serial] = asker
        self.live_containers[session.container].open_calls += 1
        self.collect(session)  # it may ask because its lease was lowered while it took: what it put back has no message
        lease, live = session.leases[gpu], self.live_containers[session.container]
        if lease.tell_again(size):
            self.waits.over(live)
            if connection := self._asker(session, serial):
                connection.send(Frame(Type.GRANTED, lease.index, serial, Code.OK, size))
            self.tell(WaitOver(self.now(), live.id))
            return
        if lost := lease.give_up_unheard():
            self.tell(Returned(self.now(), gpu, {session.id: lost}))
        collected = self._collect_its_own(live, gpu, size)
        self.tell(Needed(self.now(), session.id, serial, gpu, size, live.waited_since, collected))

    def _collect_its_own(self, live: LiveContainer, gpu: str, size: int) -> bool:
        """Takes its own container's idle headroom back if the quota has no room for `size` bytes beside it.

        A call that fails by its quota costs others nothing so: not a look at each of their leases.
        """
        known = self.state.containers.get(live.id)
        if known is None or has_room(known, gpu, size) or size > known.quota[gpu]:
            return False
        self.collect_idle(live, gpu)
        return True

    def collect_idle(self, live: LiveContainer, gpu: str) -> None:
        """Takes back the headroom of all its processes."""
        taken = {session: idle for session, lease in live.leases(gpu).items() if (idle := lease.take_back())}
        if taken:
            self.tell(Returned(self.now(), gpu, taken))

    def collect(self, session: Session) -> None:
        """Headroom of this process has grown: takes it back where anybody waits for it."""
        for gpu, lease in session.leases.items():
            if gpu in self.pressed and (size := lease.take_back()):
                self.tell(Returned(self.now(), gpu, {session.id: size}))

    def collect_excess(self, live: LiveContainer) -> None:
        """Takes back headroom that the quota has no room for: it was lowered, or overhead was found."""
        for gpu, quota in live.quota.items():
            excess = live.granted(gpu) - quota
            taken: dict[int, int] = {}
            for session, lease in live.leases(gpu).items():
                if excess > 0 and (got := lease.take_back(excess)):
                    taken[session] = got
                    excess -= got
            if taken:
                self.tell(Returned(self.now(), gpu, taken))

    def overhead(self, session: Session, gpu: str, size: int) -> None:
        """The card shows `size` bytes more for this process than it was charged; negative: less again."""
        lease = session.leases[gpu]
        if size < 0:
            if lowered := lease.discharge(-size):
                self.tell(Returned(self.now(), gpu, {session.id: lowered}))
        elif grown := lease.charge(size):
            self.tell(OverheadMeasured(self.now(), session.id, gpu, grown))

    def swapped_out(self, live: LiveContainer, cards: Mapping[str, str] = NO_CARDS) -> None:
        """What its processes have on their cards is there no more. Of one on its way back: that is called off.

        `cards`, old → new: it comes back on others.
        """
        for session in live.sessions.values():
            for lease in session.leases.values():
                lease.put_out()
        self.tell(SwappedOut(self.now(), live.id, cards))
        self.changed(live.id)

    def swap_in(self, live: LiveContainer, since: float | None) -> None:
        """`restore` is called once there is room."""
        self.tell(SwapInRequested(self.now(), live.id, since))

    def update_paused(self, live: LiveContainer) -> None:
        """The one place that tells the core whether it is paused: after each change of what that follows from."""
        known = self.state.containers.get(live.id)
        if known is not None and known.paused is not live.is_held:
            self.tell((ContainerPaused if live.is_held else ContainerResumed)(self.now(), live.id))

    def reorder(self, containers: tuple[str, ...]) -> Refused | None:
        """A person has put those who wait into this order."""
        self.waits.reordered(containers)
        return self.ask(Reordered(self.now(), containers))

    def show(self, live: LiveContainer, sessions: Iterable[Session] | None = None) -> None:
        """Brings what the container's pages display up to date, or only those of these sessions."""
        places = live.places(self.contexts)
        # Each is read once: what a process uses may be more in the next moment, and `elsewhere` is never negative.
        used = {gpu: {id_: lease.used for id_, lease in live.leases(gpu).items()} for gpu in live.quota}
        in_all = {gpu: sum(each.values()) for gpu, each in used.items()}
        for session in live.sessions.values() if sessions is None else sessions:
            for gpu, lease in session.leases.items():
                lease.show(places[gpu], elsewhere=in_all[gpu] - used[gpu][session.id])
