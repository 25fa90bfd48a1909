"""A play on two cards: containers go to the other one by hand, off a card out of service, and so that a waiter fits."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from tests.faults.plays import _KILLED
from tests.faults.scene import Scene
from tests.faults.world import GIB
from tests.support.swapped import FAILS, RESTORE
from web.models import Claim, Gpu, Node

_HOLDS = "exec {workload} --bytes 2GiB --check 1MiB --hold 600"
_COMPUTES = "exec {workload} --bytes 896MiB --check 1MiB --compute 600"
_BY_HAND = ("killed", (137, 143), "Killed by", _KILLED, 1)
XID = 95


class Cards(Scene):
    gpus = "sim:2x5GiB"
    expected = dict.fromkeys(("one", "two", "works", "waiter"), (_BY_HAND,))

    def play(self) -> None:
        world = self.world
        first, second = self._cards()
        for name, script, card in (("one", _HOLDS, first), ("two", _HOLDS, second)):
            self._launch(name, script, gpu_memory=GIB * 5 // 2, gpu_uuids=[card])
        self._launch("works", _COMPUTES, gpu_memory=GIB, give_way=True, gpu_uuids=[first])
        for name, words in (("one", "holding"), ("two", "holding"), ("works", "computed")):
            self._says(name, words)
        world.card("sim_card_speed 0 0")  # to move memory takes no time
        self._done(world.do("move", self.made["works"], gpu=second))
        self._is_on("works", second)
        self._refused(world.do("move", self.made["one"], gpu=second))  # no room
        self._done(world.do("drain-gpu", gpu=second, reason="a trial"))
        self._is_on("works", first)
        assert self._drained(second)
        self._refused(world.do("move", self.made["works"], gpu=second))
        self._done(world.do("undrain-gpu", gpu=second))
        self._has_a_fault(first)
        self._is_on("works", second)
        assert f"XID {XID}" in Gpu.objects.get(uuid=first).drain_reason
        for card in (first, second):
            self._done(world.do("undrain-gpu", gpu=card))
        self._done(world.do("kill", self.made["two"], grace=0.0))
        self._makes_room(first, second)
        world.card(f"sim_card_fault {RESTORE} {FAILS}")  # of the next one
        world.do("move", self.made["works"], gpu=first)  # done, or it came back where it was
        world.card("sim_card_fault 0 0")
        world.until_state(self.made["works"], "running")
        for name in ("one", "works", "waiter"):
            self._done(world.do("kill", self.made[name], grace=0.0))
        self._removed()

    def _has_a_fault(self, first: str) -> None:
        """NVML reports an XID once, to who listens then: one that no scheduler has written down returns."""
        reported = datetime.min.replace(tzinfo=UTC)

        def drained() -> bool:
            nonlocal reported
            seen = Node.objects.values_list("seen_at", flat=True).get()
            if seen and seen - reported > timedelta(seconds=10):  # who has only begun does not listen yet
                reported = seen
                self.world.card(f"sim_card_xid 0 {XID}")
            return self._drained(first)

        self.world.until(drained, "a card with a fault stays in service")

    def _makes_room(self, first: str, second: str) -> None:
        """One of 2.5 GiB is on the first, one of 1 GiB on the second, and another of 4.25 GiB waits there."""
        words = "exec {workload} --bytes 4GiB --check 1MiB --hold 600"
        self._launch("waiter", words, gpu_memory=GIB * 17 // 4, gpu_uuids=[second])
        self._says("waiter", "holding")
        self._is_on("works", first)

    def _cards(self) -> list[str]:
        def two() -> list[str]:
            return list(Gpu.objects.order_by("index").values_list("uuid", flat=True))

        return self.world.until(lambda: two() if len(two()) == 2 else None, "there are no two cards")

    def _drained(self, card: str) -> bool:
        return Gpu.objects.get(uuid=card).drained

    def _is_on(self, name: str, card: str) -> None:
        def there() -> bool:
            claim = Claim.objects.select_related("container", "gpu").get(container=self.made[name])
            return claim.gpu.uuid == card and not claim.container.swap and not claim.container.card_move

        try:
            self.world.until(there, "")
        except Exception as error:
            raise type(error)(f"{name} does not come to {card}: {self._moves(name)}") from None

    def _moves(self, name: str) -> list[Any]:
        kinds = ("swapped_out", "swapped_in", "card_changed", "not_moved", "card_drained")
        events = [(event.kind, event.detail) for event in self.world.events(self.made[name], *kinds)]
        return [timezone.now().isoformat(), self.world.get(self.made[name]).state, *events]
