"""Who is suspended, since when, and in which order a person has put those who wait.

A container is suspended as long as one of its calls waits although everything has been tried. A wait goes on over a
restart of the scheduler: what was told of it before is ended by what becomes of the container's next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.core.events import Event, Reordered, WaitedBefore
from scheduler.core.state import State
from scheduler.sessions.records import Records
from scheduler.sessions.tenants import Tenant

RECONNECTING = 10.0  # seconds in which whoever waited for the last scheduler asks the new one again


class Waits:
    """`changed` is called with the container whose waiting has changed; `later` takes an event for the arbiter."""

    def __init__(
        self,
        tenants: Mapping[str, Tenant],
        state: Callable[[], State],
        records: Records,
        now: Callable[[], float],
        changed: Callable[[str], None],
        later: Callable[[Event], None],
    ) -> None:
        self._tenants, self._state, self._records, self._now = tenants, state, records, now
        self._changed, self._later = changed, later
        self._order: tuple[str, ...] = ()  # by an admin; containers leave it when they do not wait any more
        self._waited_lately: set[str] = set()

    def update(self) -> None:
        """Brings up to date who is suspended."""
        since: dict[str, float] = {}
        for request in self._state().waiting:
            if request.suspended:
                since[request.container] = min(request.since, since.get(request.container, request.since))
        for tenant in self._tenants.values():
            began = since.get(tenant.id)
            if (began is None) is not (tenant.suspended_since is None) and not (began is None and tenant.waited_since):
                self._put(tenant, began)
        for container in since:
            self._changed(container)  # also when only its place in the queue is another one
        if any(not request.placed and request.container in self._order for request in self._state().waiting):
            # A program asks for its context first and its memory next: its place is kept from one call to the other.
            self._later(Reordered(self._now(), self._order))

    def _put(self, tenant: Tenant, since: float | None) -> None:
        if since is None and tenant.suspended_since is not None:
            tenant.suspended_before += max(0.0, self._now() - tenant.suspended_since)
        tenant.suspended_since = since
        self._records.is_suspended(tenant)
        for session in tenant.sessions.values():
            session.show_waiting(since)

    # ---- over a restart ----

    def took_over(self, tenant: Tenant, since: float) -> None:
        """By its pages it waits since then. Unlike the database's, their clock does not step."""
        if tenant.waited_since is not None and tenant.waited_since < since <= self._now():
            tenant.waited_since = tenant.suspended_since = since

    def gone_on(self, tenant: Tenant) -> float:
        """For a call that is suspended: the seconds that it stands for from the last scheduler's time, once."""
        if not tenant.wait_told or tenant.waited_since is None:
            return 0.0
        tenant.wait_told = False
        return max(1e-3, self._now() - tenant.waited_since)

    def expected(self) -> WaitedBefore:
        """Whoever waited when the last scheduler ended, and can ask again."""
        waited = (tenant.id for tenant in self._tenants.values() if tenant.waited_since is not None and tenant.sessions)
        return WaitedBefore(self._now(), frozenset(waited), self._now() + RECONNECTING)

    def stop_expecting(self) -> None:
        """Whoever waited when the last scheduler ended and has not asked again by now does not wait any more."""
        for tenant in self._tenants.values():
            self.over(tenant)
        self.update()

    def over(self, tenant: Tenant) -> None:
        """What went on from the last scheduler's time is over, or is a wait like any other."""
        since, tenant.waited_since = tenant.waited_since, None
        if tenant.wait_told and since is not None:
            tenant.wait_told = False
            self._records.not_asked_again(tenant, max(0.0, self._now() - since))
            self.update()

    def ended(self, tenant: Tenant) -> None:
        """The container has: the end is the end of that, too."""
        if tenant.waited_since is not None:
            tenant.waited_since, tenant.wait_told = None, False
            self.update()

    # ---- the order ----

    def reordered(self, containers: tuple[str, ...]) -> None:
        self._order = containers
        self._waited_lately = set(containers)

    def age_order(self) -> None:
        """To be called each second: who has waited neither now nor then has left the queue, and its place with it."""
        waiting = {request.container for request in self._state().waiting}
        self._order = tuple(id_ for id_ in self._order if id_ in waiting | self._waited_lately)
        self._waited_lately = waiting
