"""Plays in which a scheduler dies anyway, in the middle of what takes a while, and the next one over what it finds."""

import os
import signal

from scheduler.card.helper import State
from tests.faults.plays import _BY_HAND, _KILLED, _LIFE, _PAUSED, HOLD, POLITE
from tests.faults.scene import Scene
from tests.faults.world import GIB
from web.models import Command, Swap

_CANNOT_START = "does not take what a start has to write"
_COMES_BACK = "exec {workload} --bytes 3GiB --check 1MiB --hold 6"
_SMALL = "exec {workload} --bytes 512MiB --check 1MiB --hold 600"
_ITS_MEMORY_ENDS = "{workload} --bytes 512MiB --check 1MiB --hold 600; exec sleep 600"


class Cut(Scene):
    """On the way out and back, over a start, while the database takes nothing; and over a kill that has to wait."""

    expected = {
        "moved": (("killed", (137,), "Killed by", {**_KILLED, **_PAUSED}, 1),),
        "hollow": (("killed", (137,), "Killed by", {**_KILLED, **_PAUSED}, 1),),
        "late": (("killed", (137, 143), "Its time limit of 1 s was reached.", _KILLED, 1),),
        "last": (_BY_HAND,),
    }

    def play(self) -> None:
        world = self.world
        self._launched({
            "moved": self._begin("moved", _SMALL, gpu_memory=GIB),
            "hollow": self._begin("hollow", _ITS_MEMORY_ENDS, gpu_memory=GIB),
        })  # fmt: skip
        for name in self.made:
            self._says(name, "holding")
        moved, hollow = self.made.values()
        world.card(f"sim_card_speed {GIB} {GIB // 2}")  # a second for the way out, the first time, and for the way back
        self._cut_while(Swap.LEAVING, world.begin("pause", moved, free_memory=True))
        world.until_state(moved, "swapped")
        self._cut_while(Swap.COMING, world.begin("resume", moved), signal.SIGTERM)
        world.until_state(moved, "running")
        world.card("sim_card_speed 0 0")
        with world.trouble("unwritten"):
            pause = world.begin("pause", hollow, free_memory=True)
            self._is_logged("its swapping waits for the database", _CANNOT_START)
        self._done(world.outcome(pause))
        world.until_state(hollow, "swapped")
        self._end_its_workload()
        self._done(world.do("resume", hollow))
        world.until_state(hollow, "running")
        with world.trouble("fail-kill", "refuses"):
            self._launch("late", POLITE, ttl_seconds=1.0)
            self._is_logged("could not be ended, again")
            world.interrupt(_nothing, signal.SIGTERM)
        with world.trouble("unwritten"):
            world.interrupt(_nothing)
            self._is_logged(_CANNOT_START)
        world.interrupt(_nothing)
        world.interrupt(_nothing, signal.SIGTERM)  # while it starts
        self._launch("last", "exec sleep 600")
        for name in ("moved", "hollow", "last"):
            self._done(world.do("kill", self.made[name], grace=0.0))
        world.until_state(self.made["late"], "killed")
        self._removed()

    def _cut_while(self, stage: Swap, command: Command, how: int = signal.SIGKILL) -> None:
        """The scheduler ends while this command has its container at this stage, or has brought it past that."""

        def is_there() -> bool:
            found = Command.objects.select_related("container").get(pk=command.pk)
            return found.container.swap == stage or found.done_at is not None  # type: ignore[union-attr]

        self.world.until(is_there, f"{command.kind} is not begun")
        self.world.interrupt(_nothing, how)
        self._done(self.world.outcome(command))

    def _end_its_workload(self) -> None:
        """Whoever has memory on the card: it is out, and its shell goes on."""
        for id_, _, programs in self.world.containers_processes():
            if id_ == str(self.made["hollow"].pk):
                held = [pid for pid in programs if self.world.driver.state(pid) is State.CHECKPOINTED]
                for pid in held:
                    os.kill(pid, signal.SIGKILL)

    def _is_logged(self, *words: str) -> None:
        """Returns once any of these are."""
        log = self.world.home / "scheduler.log"
        self.world.until(lambda: any(each in log.read_text() for each in words), f"nobody says {words}")


class Stirs(Scene):
    """Who gave way while it was idle wants to compute again, under another scheduler, and comes back by itself."""

    expected = {"holder": (("exited", (0,), "", _LIFE, 1),), "waiter": (_BY_HAND,)}

    def play(self) -> None:
        world = self.world
        with world.trouble("idle"):
            self._launch("holder", _COMES_BACK, gpu_memory=4 * GIB, give_way=True)
            self._says("holder", "holding")
            world.card("sim_card_speed 0 0")
            # It is looked at once a second from then on: how it behaves while it is idle is known when it goes.
            world.until(lambda: world.get(self.made["holder"]).idle_since, "it is never idle")
            self._launch("waiter", HOLD, gpu_memory=4 * GIB)
            self._says("waiter", "holding")
            world.interrupt(_nothing)
            world.until_state(self.made["holder"], "swapped")
            self._done(world.do("kill", self.made["waiter"], grace=0.0))
            world.until_state(self.made["holder"], "exited")
        self._removed()


def _nothing() -> None:
    """Happens meanwhile."""
