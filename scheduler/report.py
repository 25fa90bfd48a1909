"""Tells the store what containers hold and who waits: the rows that a screen shows. Only what changed is written."""

from __future__ import annotations

from .broker import Broker
from .core import policies, safety
from .core.admission import size
from .core.state import Request
from .store import Store


class Report:
    def __init__(self, broker: Broker, store: Store) -> None:
        self._broker = broker
        self._store = store
        self._queued: set[str] = set()
        self._published: dict[str, list[str]] = {}

    def publish(self) -> None:
        tenants = self._broker.tenants
        for gone in self._published.keys() - tenants.keys():
            gpus = self._published.pop(gone)
            for gpu in gpus:
                self._store.claim(gone, gpu, used=0, granted=0, overhead=0, unexplained=0, processes=[])
            self._store.forget(gone, gpus)
        for tenant in tenants.values():
            self._published[tenant.id] = list(tenant.quota)
            for gpu in tenant.quota:
                self._store.claim(
                    tenant.id,
                    gpu,
                    used=tenant.note_peak(gpu),
                    granted=tenant.granted(gpu),
                    peak=tenant.peak[gpu],
                    overhead=tenant.overhead(gpu),
                )
        self._publish_queue()

    def _publish_queue(self) -> None:
        """The place of a container is that of its foremost call, by what the policy would try first."""
        state = self._broker.state
        calls: dict[str, list[Request]] = {}
        for request in state.waiting:
            if request.suspended:
                calls.setdefault(request.container, []).append(request)
        ranks: dict[str, int] = {}
        for gpu in {request.gpu for request in state.waiting}:
            for rank, request in enumerate(policies.order(state, gpu)):
                ranks[request.container] = min(rank, ranks.get(request.container, rank))
        # Whom the policy does not try now comes behind, in order of arrival.
        order = sorted(calls, key=lambda container: ranks.get(container, len(state.waiting)))
        for position, container in enumerate(order, 1):
            self._store.container(
                container,
                queue_position=position,
                queue_bytes=sum(request.bytes for request in calls[container]),
                queue_reason=self._reason(calls[container][0]),
            )
        for container in self._queued - calls.keys():
            self._store.container(container, queue_position=None, queue_bytes=0, queue_reason="")
        self._queued = set(calls)

    def _reason(self, request: Request) -> str:
        state = self._broker.state
        if state.containers[request.container].paused:
            return f"It is paused; it asks for {size(request.bytes)}."
        free = max(0, safety.free(state, request.gpu))
        if request.bytes > free:
            return f"It needs {size(request.bytes)}; {size(free)} are free."
        return f"It needs {size(request.bytes)} of {size(free)} free; others who hold memory must be able to end first."
