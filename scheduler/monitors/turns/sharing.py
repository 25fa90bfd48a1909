"""How containers share each card's computing: by turns or at once, why, and what the records say of it."""

import logging

from django.conf import settings

from scheduler.card.turns import TurnPlayer
from scheduler.core.turns import Mode, Standing
from scheduler.gpus import Gpus
from scheduler.monitors.turns.computing import Computing
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import Store

log = logging.getLogger(__name__)


class Sharing:
    """`GPUSHARE_COMPUTE` is `turns` or `shared`; what an admin chose for a card goes before."""

    def __init__(self, gpus: Gpus, turns: TurnPlayer, computing: Computing, broker: Broker, store: Store) -> None:
        self._gpus, self._turns, self._computing, self._broker = gpus, turns, computing, broker
        self._store = store

    async def start(self) -> None:
        """Once all that lives is known. Raises DatabaseError."""
        asked = await self._store.records.compute_asked()
        modes = {gpu: Mode(asked.get(gpu) or settings.GPUSHARE_COMPUTE) for gpu in self._gpus.cards}
        await self._turns.start(modes)
        self._store.node(cannot_turn=self._turns.why_not[:500])
        for gpu in modes:
            self._show(gpu, "An admin chose this." if gpu in asked else "GPUSHARE_COMPUTE says so.")
        self._computing.meet()
        self._turns.failed |= {live.id for live in self._broker.live_containers.values() if live.no_turns}
        # An earlier scheduler may have had them stopped, and nobody was left to let them go; what is being moved to
        # host memory or back, swapping.py brings to its end.
        for live in self._broker.live_containers.values():
            if not live.swap:
                self._turns.release(live.id)

    async def set_mode(self, gpu: str, mode: str) -> str:
        """A sentence on what is so from now on. Raises Problem."""
        said = await self._turns.set_mode(gpu, Mode(mode))
        self._show(gpu, "An admin chose this.")
        return said

    def standing(self, live: LiveContainer, gpu: str) -> Standing | None:
        """What the turns have counted; None where all compute at once."""
        return None if self._turns.mode(gpu) is Mode.SHARED else self._turns.standing(live.id, gpu)

    def _show(self, gpu: str, why: str) -> None:
        mode = self._turns.mode(gpu)
        self._store.gpu(gpu, compute=mode.value, compute_why=(self._turns.why_not or why)[:500])

    def report(self, container: str, why: str) -> None:
        live = self._broker.live_containers.get(container)
        if live is not None and not live.finished:
            live.no_turns = why[:500]
            self._store.container(container, no_turns=live.no_turns)
            if why:
                self._store.event("not_stopped", container, detail=why)
