"""Cards out of service: nothing new is placed on them, and what runs there goes on.

An admin takes a card out of service, or a fault does (faults.py); only an admin puts it back. What was found before
that does not take it out again while it merely lasts: its reason stays in the card's row.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from django.conf import settings
from django.db import DatabaseError

from scheduler import clock
from scheduler.core.events import GpuDrained
from scheduler.gpus import Gpus, Reading
from scheduler.monitors.cards import faults
from scheduler.sessions.broker import Broker
from scheduler.store import Store
from web import audit
from web.errors import Problem

log = logging.getLogger(__name__)


class Service:
    def __init__(self, gpus: Gpus, broker: Broker, store: Store) -> None:
        self._gpus, self._broker, self._store = gpus, broker, store
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
        return f"GPU {self._gpus.cards[gpu].index} takes no new containers. What runs there goes on."

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
