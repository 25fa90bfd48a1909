"""Containers and their processes come and go: who is known to the broker, and what each may have."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.events import ContainerAdded, ContainerEnded, QuotaChanged, Refused, SessionEnded, SessionOpened
from scheduler.sessions.broker import Broker
from scheduler.sessions.tenants import Session, Tenant


class Roster:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # ---- containers ----

    def add(self, tenant: Tenant, event: ContainerAdded) -> Refused | None:
        """Admits a container; the refusal if it may not be."""
        self._broker.tenants[tenant.id] = tenant
        if refusal := self._broker.ask(event):
            del self._broker.tenants[tenant.id]
        return refusal

    def change_quota(self, tenant: Tenant, quota: Mapping[str, int]) -> Refused | None:
        """Bytes for each of its GPUs. If it is refused, nothing has changed."""
        if refusal := self._broker.ask(QuotaChanged(self._broker.now(), tenant.id, quota)):
            return refusal
        tenant.quota = {gpu: quota[gpu] for gpu in tenant.quota}
        self._broker.collect_excess(tenant)
        self._broker.show(tenant)
        return None

    def end(self, tenant: Tenant) -> None:
        """The container has ended. It is forgotten when its last process's memory is back."""
        tenant.finished = True
        self._broker.waits.ended(tenant)
        self._forget_if_gone(tenant)

    def _forget_if_gone(self, tenant: Tenant) -> None:
        if tenant.finished and not tenant.sessions and self._broker.tenants.pop(tenant.id, False):
            self._broker.tell(ContainerEnded(self._broker.now(), tenant.id))
            self._broker.records.end(tenant)
            self._broker.changed(tenant.id)

    # ---- processes ----

    def open(self, session: Session) -> None:
        """A process is known from now on, with what its leases hold already."""
        broker, tenant = self._broker, self._broker.tenants[session.container]
        broker.sessions[session.id] = tenant.sessions[session.id] = session
        for gpu, lease in session.leases.items():
            broker.leases.setdefault(gpu, {})[session.id] = lease
            lease.set_pressure(gpu in broker.pressed)
        session.show_waiting(tenant.suspended_since)
        leased = {gpu: lease.granted for gpu, lease in session.leases.items() if lease.granted}
        broker.tell(SessionOpened(broker.now(), session.id, tenant.id, leased))
        broker.show(tenant, [session])

    def close(self, session: Session) -> None:
        """The card no longer shows the process: its whole lease comes back."""
        broker, tenant = self._broker, self._broker.tenants[session.container]
        for gpu in session.leases:
            tenant.note_peak(gpu)
        del tenant.sessions[session.id]
        for gpu in session.leases:
            del broker.leases[gpu][session.id]
        tenant.note_gone([session.pid], broker.now())
        broker.tell(SessionEnded(broker.now(), session.id))
        del broker.sessions[session.id]  # last: the end of a call of it that waited was still to be written down
        for gpu in session.leases:
            broker.records.use(tenant, gpu, pid=session.pid)
        broker.changed(tenant.id)
        self._forget_if_gone(tenant)
