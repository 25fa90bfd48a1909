"""Finds containers that hold VRAM while their GPUs do nothing for them; marks them, and does more if configured.

The core is informed as well, before they count as idle: it decides who gives way to those who wait.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError

from scheduler.containers.intents import Intents
from scheduler.core import events
from scheduler.gpus import Reading
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import Store
from web.models import Container
from web.services import warning

log = logging.getLogger(__name__)

REPORTED_AFTER = 10.0  # seconds without computing


class Idle:
    """`GPUSHARE_IDLE_MINUTES` without computing make a holder idle.

    `held_back` tells whether a container is locked until its turn.

    `GPUSHARE_IDLE_ACTION` is `mark`, `notify` (its owner sees a warning on every page for a day) or `pause`.
    """

    def __init__(self, intents: Intents, broker: Broker, store: Store, held_back: Callable[[str], bool]) -> None:
        self._intents, self._held_back, self._broker, self._store = intents, held_back, broker, store
        self._since: dict[str, float] = {}
        self._reported: set[str] = set()  # to the core: they compute nothing
        self._marking: dict[str, asyncio.Task[None]] = {}

    async def look(self, readings: Mapping[str, Reading]) -> None:
        live_containers = self._broker.live_containers
        self._since = {id_: since for id_, since in self._since.items() if id_ in live_containers}
        self._reported &= self._since.keys()
        for live in list(live_containers.values()):
            if live.swap:
                self._since.pop(live.id, None)  # activity.py looks at these
                self._unmark(live)
            elif self._is_working(live, readings):
                self._since.pop(live.id, None)
                self._tell_working(live)
                self._unmark(live)
            elif live.paused:
                self._since.pop(
                    live.id, None
                )  # a paused container cannot compute: its time begins anew when it is resumed
                self._tell_working(live)
            else:
                since = self._since.setdefault(live.id, self._broker.now())
                seconds = self._broker.now() - since
                self._tell_idle(live, since)
                if seconds >= 60 * settings.GPUSHARE_IDLE_MINUTES and not live.idle:
                    self._begin_to_mark(live, seconds)

    def _tell_idle(self, live: LiveContainer, since: float) -> None:
        now, enough = self._broker.now(), min(REPORTED_AFTER, self._broker.state.preemption.idle)
        if live.id not in self._reported and now - since >= enough:
            self._reported.add(live.id)
            self._broker.tell(events.Idle(now, live.id, since))

    def _tell_working(self, live: LiveContainer) -> None:
        if live.id in self._reported:
            self._reported.discard(live.id)
            self._broker.tell(events.ActivityDetected(self._broker.now(), live.id))

    def _is_working(self, live: LiveContainer, readings: Mapping[str, Reading]) -> bool:
        """Also true where it cannot be known: idle is only who certainly does not compute."""
        if live.finished or live.suspended_since is not None or not settings.GPUSHARE_IDLE_MINUTES:
            return True
        if self._held_back(live.id):
            return True
        held = [gpu for gpu in live.quota if live.used(gpu)]
        pids = live.pids_lately(self._broker.now())
        loads = [readings[gpu].computed(pids) for gpu in held if gpu in readings]
        return not loads or any(load is None or load > 0 for load in loads)

    def _begin_to_mark(self, live: LiveContainer, seconds: float) -> None:
        """Beside the look, which is a part of the measuring: that does not wait for the database."""
        if live.id not in self._marking:
            task = self._marking[live.id] = asyncio.create_task(self._mark(live, seconds))
            task.add_done_callback(lambda _: self._marking.pop(live.id))

    async def _mark(self, live: LiveContainer, seconds: float) -> None:
        why = f"It holds VRAM and has not computed for {seconds / 60:.0f} min."
        live.idle = True  # until a look finds it computing: a pause that is carried out after that is refused
        try:
            # The audit log takes what people and the appliance do from the appliance's own host alone.
            if settings.GPUSHARE_IDLE_ACTION == "notify" and not settings.GPUSHARE_AUDIT_KEY:
                await self._store.ask(_warn, live.id)
            elif settings.GPUSHARE_IDLE_ACTION == "pause":
                await self._intents.pause(live, why)
        except DatabaseError as error:
            log.warning("container %s is idle; what is to follow is tried again: %s", live, error)
            live.idle = False
            return
        if live.finished or not live.idle:
            return  # meanwhile
        self._store.container(live.id, idle_since=self._store.clocks.now(live.id) - timedelta(seconds=seconds))
        self._store.event("idle", live.id, detail=why)

    def _unmark(self, live: LiveContainer) -> None:
        if live.idle:
            live.idle = False
            self._store.container(live.id, idle_since=None)


def _warn(container: str) -> None:
    warning.tell_owner("gpushare", Container.objects.select_related("owner").get(pk=container))
