"""A play of those who wait, and of the reasons that they are shown: somebody's time, earlier runs, a pause."""

from datetime import timedelta

from django.db.models import F

from tests.faults.plays import _BY_HAND, _KILLED, _LIFE, _WAITER
from tests.faults.scene import Kind, Scene
from tests.faults.world import GIB
from web.models import Container, ExpectedBy, Gpu

_JOB = "exec {workload} --bytes 3GiB --check 1MiB --hold $HOLD"


class Awaited(Scene):
    expected = {
        "one": (("exited", (0,), "", _LIFE, 1),),
        "two": (("exited", (0,), "", _LIFE, 1),),
        "three": (_BY_HAND,),
        "four": (_WAITER,),
        "limited": (("killed", (137, 143), "Killed by", {**_KILLED, Kind.PAUSED: 1}, 1),),
        "five": (_WAITER,),
    }

    def play(self) -> None:
        world = self.world
        for name in ("one", "two"):
            self._job(name, hold="0")
            world.until_state(self.made[name], "exited")
        # They took an hour.
        Container.objects.exclude(finished_at=None).update(started_at=F("started_at") - timedelta(hours=1))
        self._job("three")
        self._says("three", "holding")
        self._job("four")
        self._is_shown("four", "earlier runs took", ExpectedBy.EARLIER_RUNS)
        self._card_is_hot()
        for name in ("three", "four"):
            self._done(world.do("kill", self.made[name], grace=0.0))
        self._job("limited", ttl_seconds=300.0)
        self._says("limited", "holding")
        self._job("five")
        self._is_shown("five", "Next when limited ends, at", ExpectedBy.LIMITS)
        self._done(world.do("pause", self.made["limited"]))
        self._is_shown("five", "limited is paused by", "")
        for name in ("limited", "five"):
            self._done(world.do("kill", self.made[name], grace=0.0))
        self._removed()

    def _job(self, name: str, hold: str = "600", **fields: object) -> None:
        """The same job each time, by what the history knows of it."""
        self._launch(name, _JOB, gpu_memory=4 * GIB, environment={"HOLD": hold}, **fields)

    def _card_is_hot(self) -> None:
        """It becomes hot, short of switching itself off, and cool again: whoever waits goes on waiting."""
        for order, is_shown in (
            ("sim_card_heat 0 55", lambda gpu: gpu.hot_since is not None),
            ("sim_card_heat 0 0", lambda gpu: gpu.hot_since is None),
        ):
            self.world.card(order)
            self.world.until(lambda: is_shown(Gpu.objects.get()), f"nobody tells what comes of {order}")  # noqa: B023

    def _is_shown(self, name: str, words: str, by: str) -> None:
        def shown() -> bool:
            found = self.world.get(self.made[name])
            return words in found.queue_reason and found.expected_by == by

        self.world.until(shown, f"{name} is not shown {words!r}: {self.world.get(self.made[name]).queue_reason}")
