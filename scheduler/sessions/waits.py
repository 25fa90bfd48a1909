"""Who is suspended, since when, and in which order a person has put those who wait.

A container is suspended as long as one of its calls waits although everything has been tried, or its first one is
withheld. A wait goes on over a
restart of the scheduler: what was recorded of it before is ended by what becomes of the container's next call.
"""

from collections.abc import Callable, Mapping

from scheduler.core.events import Event, Reordered, WaitedBefore
from scheduler.core.state import State
from scheduler.sessions.live_containers import LiveContainer
from scheduler.sessions.records import Records

RECONNECTING = 10.0  # seconds in which whoever waited for the last scheduler asks the new one again


class Waits:
    """`changed` is called with the container whose waiting has changed; `later` takes an event for the arbiter."""

    def __init__(
        self,
        live_containers: Mapping[str, LiveContainer],
        state: Callable[[], State],
        records: Records,
        now: Callable[[], float],
        changed: Callable[[str], None],
        later: Callable[[Event], None],
    ) -> None:
        self._live_containers, self._state, self._records, self._now = live_containers, state, records, now
        self._changed, self._later = changed, later
        self._order: tuple[str, ...] = ()  # by an admin; containers leave it when they do not wait any more
        self._waited_lately: set[str] = set()

    def update(self) -> None:
        """Brings up to date who is suspended."""
        since: dict[str, float] = {}
        for request in self._state().waiting:
            if request.suspended and request.session >= 0:
                since[request.container] = min(request.since, since.get(request.container, request.since))
        for live in self._live_containers.values():
            if live.withheld:
                since[live.id] = min(live.withheld.since, since.get(live.id, live.withheld.since))
        for live in self._live_containers.values():
            began = since.get(live.id)
            if (began is None) is not (live.suspended_since is None) and not (began is None and live.waited_since):
                self._put(live, began)
        for container in since:
            self._changed(container)  # also when only its place in the queue is another one
        if any(not request.placed and request.container in self._order for request in self._state().waiting):
            # A program asks for its context first and its memory next: its place is kept from one call to the other.
            self._later(Reordered(self._now(), self._order))

    def _put(self, live: LiveContainer, since: float | None) -> None:
        if since is None and live.suspended_since is not None:
            live.suspended_before += max(0.0, self._now() - live.suspended_since)
        live.suspended_since = since
        self._records.is_suspended(live)
        for session in live.sessions.values():
            session.show_waiting(since)

    # ---- over a restart ----

    def took_over(self, live: LiveContainer, since: float) -> None:
        """By its pages it waits since then. Unlike the database's, their clock does not step."""
        if live.waited_since is not None and live.waited_since < since <= self._now():
            live.waited_since = live.suspended_since = since

    def gone_on(self, live: LiveContainer) -> float:
        """For a call that is suspended: the seconds that it stands for from the last scheduler's time, once."""
        if not live.wait_recorded or live.waited_since is None:
            return 0.0
        live.wait_recorded = False
        return max(1e-3, self._now() - live.waited_since)

    def expected(self) -> WaitedBefore:
        """Whoever waited when the last scheduler ended, and can ask again."""
        waited = (live.id for live in self._live_containers.values() if live.waited_since is not None and live.sessions)
        return WaitedBefore(self._now(), frozenset(waited), self._now() + RECONNECTING)

    def stop_expecting(self) -> None:
        """Whoever waited when the last scheduler ended and has not asked again by now does not wait any more."""
        for live in self._live_containers.values():
            self.over(live)
        self.update()

    def over(self, live: LiveContainer) -> None:
        """What went on from the last scheduler's time is over, or is a wait like any other."""
        since, live.waited_since = live.waited_since, None
        if live.wait_recorded and since is not None:
            live.wait_recorded = False
            self._records.not_asked_again(live, max(0.0, self._now() - since))
            self.update()

    def ended(self, live: LiveContainer) -> None:
        """The container has: the end is the end of that, too."""
        if live.waited_since is not None:
            live.waited_since, live.wait_recorded = None, False
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
