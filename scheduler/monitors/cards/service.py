"""Cards out of service: nothing new is placed on them, and what runs there is moved to another card, or goes on.

An admin takes a card out of service, or a fault does (faults.py); only an admin puts it back. What was found before
that does not take it out again while it merely lasts: its reason stays in the card's row.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from math import inf

from django.conf import settings
from django.db import DatabaseError

from scheduler import clock
from scheduler.containers import placement
from scheduler.core.events import GpuDrained
from scheduler.gpus import Gpus, Reading
from scheduler.monitors.cards import faults
from scheduler.monitors.cards.faults import SILENT
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import Store
from web import audit
from web.errors import Problem

log = logging.getLogger(__name__)


AGAIN = 600.0  # seconds in which one that could not be moved is not tried again
NO_ROOM = 30.0  # and one that had no room on another card
Move = Callable[[LiveContainer, str, str, str], Awaitable[str]]


class Service:
    """`move` moves a container from one card to another, for a reason. Raises Problem."""

    def __init__(self, gpus: Gpus, broker: Broker, store: Store, move: Move) -> None:
        self._gpus, self._broker, self._store, self._move = gpus, broker, store, move
        self._again: dict[str, float] = {}  # container that could not be moved off → when it is tried again
        self._reasons: dict[str, str] = {}  # GPU → why it was last drained
        self._unrecorded: list[tuple[str, str]] = []  # deeds of ours that the audit log has not taken yet

    async def start(self) -> None:
        """What an earlier scheduler knew. Raises DatabaseError."""
        for gpu, (drained, reason) in (await self._store.records.drained()).items():
            self._reasons[gpu] = reason
            if drained:
                self._broker.tell(GpuDrained(self._broker.now(), gpu, drained=True))

    def is_drained(self, gpu: str) -> bool:
        return self._broker.state.gpus[gpu].drained

    def drain(self, gpu: str, reason: str) -> str:
        """For a person. A sentence about what is so now. Raises Problem."""
        self._require_here(gpu)
        self._drain(gpu, reason or "An admin takes it out of service.")
        return f"GPU {self._gpus.cards[gpu].index} takes no new containers. Its containers continue, or are moved."

    def undrain(self, gpu: str) -> str:
        self._require_here(gpu)
        self._store.gpu(gpu, drained_at=None)
        self._broker.tell(GpuDrained(self._broker.now(), gpu, drained=False))
        return f"GPU {self._gpus.cards[gpu].index} takes containers again."

    def see(self, readings: Mapping[str, Reading], lost: Collection[str]) -> None:
        """To be called with each reading of the cards. `lost`: those that NVML says are gone."""
        for gpu, card in self._gpus.cards.items():
            reading = readings.get(gpu)
            if reading is None and gpu not in lost:
                continue
            event = faults.XIDS.get(reading.xid) if reading and reading.xid is not None else None
            reason = str(event) if event else faults.found(card, reading)
            if reason and not self.is_drained(gpu) and (event or reason != self._reasons.get(gpu)):
                log.error("GPU %s is taken out of service: %s", gpu, reason)
                self._unrecorded.append((gpu, reason))
                self._drain(gpu, reason)

    async def look(self) -> None:
        """As of idle.py, the audit log takes what the appliance does from the appliance's own host alone."""
        while self._unrecorded and not settings.GPUSHARE_AUDIT_KEY:
            try:
                await self._store.ask(_record, *self._unrecorded[0])
            except DatabaseError as error:
                log.warning("a drained GPU is not in the audit log yet: %s", error)
                return
            del self._unrecorded[0]

    async def empty(self) -> None:
        """Moves who can be moved off the cards that are out of service; one after the other, and the others stay."""
        lives = self._broker.live_containers
        self._again = {name: at for name, at in self._again.items() if name in lives}
        for live in list(lives.values()):
            for gpu in [gpu for gpu in live.quota if self.is_drained(gpu) and self._reasons.get(gpu) not in SILENT]:
                if to := self._other(live, gpu):
                    try:
                        await self._move(live, gpu, to, f"GPU {self._gpus.cards[gpu].index} is out of service.")
                    except Problem as problem:
                        log.warning("container %s stays on a GPU that is out of service: %s", live, problem)
                        after = NO_ROOM if problem.code == "no_room" else AGAIN
                        self._again[live.id] = self._broker.now() + after

    def _other(self, live: LiveContainer, gpu: str) -> str:
        """A card for it, if it may be moved; else empty."""
        known, state = self._broker.state.containers.get(live.id), self._broker.state
        tried = self._broker.now() < self._again.get(live.id, -inf)
        if known is None or tried or live.finished or not (live.engine_id and known.preemptible and known.movable):
            return ""
        others = {
            uuid: card for uuid, card in state.gpus.items() if uuid not in live.quota and uuid in self._gpus.cards
        }
        try:
            return placement.choose(replace(state, gpus=others), 1, live.quota[gpu], owner=live.owner)[0]
        except Problem:
            return ""

    def _drain(self, gpu: str, reason: str) -> None:
        reason = self._reasons[gpu] = reason[:500]
        self._store.gpu(gpu, drained_at=clock.now(), drain_reason=reason)
        self._broker.tell(GpuDrained(self._broker.now(), gpu, drained=True))
        for live in self._broker.live_containers.values():
            if gpu in live.quota and not live.finished:
                self._store.event("card_drained", live.id, gpu=gpu, detail=reason)

    def _require_here(self, gpu: str) -> None:
        if gpu not in self._gpus.cards:
            raise Problem("gpu_gone", "That GPU is not in this host any more.", 409)


def _record(subject: str, reason: str) -> None:
    audit.record("gpushare", "drain-gpu", subject, reason=reason)
