"""Tells the store what containers hold and who waits: the rows that a screen shows. Only what changed is written."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from scheduler.containers.forecasts import Expected, Forecasts, idle, turn_of
from scheduler.core import policies, reserved
from scheduler.core.reasons import why, why_withheld
from scheduler.core.state import Request
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import Store
from web.models.states import NOT_WAITING, NOTHING_HELD, NOTHING_USED

PAUSE = 0.05  # seconds; the most often that rows are looked through
AT_ONCE = 20  # containers that one glance shows; where more change all the time, the others wait for the second


SET = 1.0  # seconds by which a clock differs that was set
NONE = Expected("")


class StatusPublisher:
    """Changes are published at once. Use inside a lease sends no message: pages are read ten times a second,
    and everything is published once a second."""

    def __init__(self, broker: Broker, forecasts: Forecasts, store: Store) -> None:
        self._broker, self._forecasts, self._store = broker, forecasts, store
        self._changed: set[str] = set()
        self._some = asyncio.Event()
        self._queue: object = None
        self._queued: set[str] = set()
        self._known: dict[str, LiveContainer] = {}
        self._published: dict[str, tuple[int, ...]] = {}  # container → what it uses, by GPU, as last shown

    def changed(self, container: str) -> None:
        self._know(container)  # it may be gone before we look, and its peak with it
        self._changed.add(container)
        self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            changed, self._changed = self._changed, set()
            self._publish(changed)
            await asyncio.sleep(PAUSE)

    def glance(self) -> None:
        """Shows whose use has changed, the longest unseen first; who changes all the time gives way to who does not."""
        # In the order in which they were shown last: `_show` puts each at the end.
        for id_ in list(islice(self._differing(), AT_ONCE)):
            self.changed(id_)

    def _differing(self) -> Iterator[str]:
        for id_, shown in self._published.items():
            if (live := self._broker.live_containers.get(id_)) and uses(live) != shown:
                yield id_

    def publish(self) -> None:
        self._queue = None  # what is free, and so why somebody waits, may have changed
        self._publish(self._broker.live_containers.keys() | self._known.keys())

    def _publish(self, containers: Iterable[str]) -> None:
        waiting = Counter[tuple[str, str]]()  # bytes, by container and GPU
        for request in self._broker.state.waiting:
            waiting[request.container, request.gpu] += request.bytes * request.suspended
        for id_ in containers:
            if live := self._know(id_):
                self._show(live, waiting)
            elif live := self._known.pop(id_, None):
                self._published.pop(id_, None)
                for gpu in live.quota:
                    peak = live.peak.get(gpu, 0)
                    self._store.claim(id_, gpu, **NOTHING_HELD, peak=peak)
                self._store.container(id_, **NOTHING_USED)
                self._store.forget(id_, list(live.quota))
        self.show_gpus()
        if self._queue is not self._broker.state.waiting:
            self._queue = self._broker.state.waiting
            self._show_queue()

    def _know(self, container: str) -> LiveContainer | None:
        """The container if it lives, from now on remembered until its end has been shown."""
        if live := self._broker.live_containers.get(container):
            self._known[container] = live
        return live

    def _show(self, live: LiveContainer, waiting: Mapping[tuple[str, str], int]) -> None:
        if (used := uses(live)) != self._published.get(live.id):
            self._published.pop(live.id, None)
            self._published[live.id] = used
        if abs((ahead := self._store.clocks.ahead(live.id)) - live.clock_ahead) > SET:
            live.clock_ahead = round(ahead, 1)
            self._store.container(live.id, clock_ahead=live.clock_ahead)
        for gpu in live.quota:
            self._store.claim(
                live.id,
                gpu,
                used=live.note_peak(gpu),
                granted=live.granted(gpu),
                peak=live.peak[gpu],
                overhead=live.overhead(gpu),
                waiting=waiting[live.id, gpu],
            )

    def show_gpus(self) -> None:
        """What the arbiter decides by, and not a second reckoning: no screen can say that more or less is free."""
        state = self._broker.state
        for gpu, card in state.gpus.items():
            free = max(0, reserved.free(state, gpu))
            self._store.gpu(gpu, capacity=card.capacity, most=card.most, free=free, idle=idle(self._broker, gpu))

    def _show_queue(self) -> None:
        """The place of a container is that of its foremost call, by what the policy would try first."""
        state = self._broker.state
        calls: dict[str, list[Request]] = {}
        for request in state.waiting:
            if request.suspended and request.session >= 0:  # else it is shown among the planned ones
                calls.setdefault(request.container, []).append(request)
        ranks: dict[str, int] = {}
        tried: set[Request] = set()
        for gpu in {request.gpu for request in state.waiting}:
            for rank, request in enumerate(policies.order(state, gpu)):
                tried.add(request)
                ranks[request.container] = min(rank, ranks.get(request.container, rank))
        # Whom the policy does not try now comes behind, in order of arrival.
        order = sorted(calls, key=lambda container: ranks.get(container, len(state.waiting)))
        led: set[str] = set()  # GPUs whose first in line has been shown
        for position, container in enumerate(order, 1):
            request = calls[container][0]
            leads = request.gpu not in led
            led.add(request.gpu)
            expected = self._forecasts.expected.get(container, NONE)
            if leads and self._forecasts.queue is not state.waiting:  # it is to be known at once
                expected = Expected(sentence) if (sentence := turn_of(self._broker, request)) else expected
            self._store.container(
                container,
                queue_position=position,
                queue_bytes=sum(request.bytes for request in calls[container]),
                queue_reason=f"{why(state, request, tried=request in tried)} {expected.sentence}".strip()[:500],
                expected_at=expected.at,
                expected_by=expected.by,
            )
        withheld = [live for live in self._broker.live_containers.values() if live.withheld and live.id not in calls]
        for position, live in enumerate(withheld, len(order) + 1):
            self._show_withheld(live, position)
        queued = calls.keys() | {live.id for live in withheld}
        for container in self._queued - queued:
            self._store.container(container, **NOT_WAITING)
        self._queued = queued

    def _show_withheld(self, live: LiveContainer, position: int) -> None:
        assert live.withheld is not None
        reason = why_withheld(live.withheld.bytes, live.owner, live.withheld.until - self._broker.now())
        waits = {"queue_position": position, "queue_bytes": live.withheld.bytes, "queue_reason": reason}
        self._store.container(live.id, **{**NOT_WAITING, **waits})


def uses(live: LiveContainer) -> tuple[int, ...]:
    """Bytes on each of its GPUs, in the order of its quota."""
    return tuple(live.used(gpu) for gpu in live.quota)
