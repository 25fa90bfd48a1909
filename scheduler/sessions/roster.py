"""Containers and their processes come and go: who is known to the broker, and what each may have."""

from collections.abc import Mapping

from scheduler.core.effects import Refused
from scheduler.core.events import ContainerAdded, ContainerEnded, QuotaChanged, SessionEnded, SessionOpened
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer, Session


class Roster:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # ---- containers ----

    def add(self, live: LiveContainer, event: ContainerAdded) -> Refused | None:
        """Admits a container; the refusal if it may not be."""
        self._broker.live_containers[live.id] = live
        if refusal := self._broker.ask(event):
            del self._broker.live_containers[live.id]
        return refusal

    def change_quota(self, live: LiveContainer, quota: Mapping[str, int]) -> Refused | None:
        """Bytes for each of its GPUs. If it is refused, nothing has changed."""
        if refusal := self._broker.ask(QuotaChanged(self._broker.now(), live.id, quota)):
            return refusal
        live.quota = {gpu: quota[gpu] for gpu in live.quota}
        self._broker.collect_excess(live)
        self._broker.show(live)
        return None

    def end(self, live: LiveContainer) -> None:
        """The container has ended. It is forgotten when its last process's memory is back."""
        live.finished = True
        self._broker.waits.ended(live)
        self._forget_if_gone(live)

    def _forget_if_gone(self, live: LiveContainer) -> None:
        if live.finished and not live.sessions and self._broker.live_containers.pop(live.id, False):
            now = self._broker.now()
            self._broker.ended = [each for each in [*self._broker.ended, live] if each.pids_lately(now)]
            self._broker.tell(ContainerEnded(now, live.id))
            self._broker.records.end(live)
            self._broker.changed(live.id)

    # ---- processes ----

    def open(self, session: Session) -> None:
        """A process is known from now on, with what its leases hold already."""
        broker, live = self._broker, self._broker.live_containers[session.container]
        broker.sessions[session.id] = live.sessions[session.id] = session
        for gpu, lease in session.leases.items():
            broker.leases.setdefault(gpu, {})[session.id] = lease
            lease.set_pressure(gpu in broker.pressed)
        session.show_waiting(live.suspended_since)
        leased = {gpu: lease.granted for gpu, lease in session.leases.items() if lease.granted}
        broker.tell(SessionOpened(broker.now(), session.id, live.id, leased))
        broker.show(live, [session])

    def close(self, session: Session) -> None:
        """The card no longer shows the process: its whole lease comes back."""
        broker, live = self._broker, self._broker.live_containers[session.container]
        for gpu in session.leases:
            live.note_peak(gpu)
        del live.sessions[session.id]
        for gpu in session.leases:
            del broker.leases[gpu][session.id]
        live.note_gone([session.pid], broker.now())
        broker.tell(SessionEnded(broker.now(), session.id))
        del broker.sessions[session.id]  # last: the end of a call of it that waited was still to be written down
        for gpu in session.leases:
            broker.records.use(live, gpu, pid=session.pid)
        broker.changed(live.id)
        self._forget_if_gone(live)
