"""Plays of containers that compute at once, on the simulated card: they take turns, whatever is done to them meanwhile.

A worker that dies over a move has it refused, rightly: then it is asked for again (`_insist`).
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scheduler.card.helper import State
from scheduler.engines.process import tree
from tests.faults.plays import _BY_HAND, _KILLED, _PAUSED
from tests.faults.questions import nobody_stopped
from tests.faults.scene import Scene
from tests.faults.world import GIB, ROOT
from tests.support.swapped import FAILS, LOCK
from web.models import Claim, Gpu

_COMPUTES = "exec {workload} --bytes 64MiB --check 1MiB --compute 600"
_TWO_COMPUTE = f"{_COMPUTES.removeprefix('exec ')} & sleep 5; {_COMPUTES}"
_HOLDS = "{workload} --bytes 64MiB --check 1MiB --hold 600"
_GUARDIAN = b"/guardian\0"
_MEMORY = GIB // 4
_PAUSED_ONCE = ("killed", (137, 143), "Killed by", {**_KILLED, **_PAUSED}, 1)
_TURN = 0.15  # seconds that one has waited for its turn, and more than what is rounded


class _Turning(Scene):
    def _take_turns(self, *names: str) -> None:
        """Returns once each of them has had to wait for the others."""
        before = {name: self._held_back(name) for name in names}
        for name in names:
            self.world.until(lambda: self._held_back(name) > before[name] + _TURN, f"{name} takes no turns")  # noqa: B023

    def _held_back(self, name: str) -> float:
        """Seconds."""
        return Claim.objects.get(container=self.made[name]).held_back or 0.0

    def _has_turn(self, name: str) -> bool:
        """It computes, and somebody else is locked."""
        found = {id_: {self.world.driver.state(pid) for pid in pids}
                 for id_, _, pids in self.world.containers_processes()}  # fmt: skip
        mine = found.pop(str(self.made[name].pk), set())
        return State.RUNNING in mine and any(State.LOCKED in states for states in found.values())

    def _insist(self, kind: str, name: str, **arguments: Any) -> None:
        command = self.world.do(kind, self.made[name], **arguments)
        if "The helper was ended" in command.message:
            command = self.world.do(kind, self.made[name], **arguments)
        self._done(command)

    def _moved_out_and_back(self, name: str) -> None:
        self._insist("pause", name, free_memory=True)
        self.world.until_state(self.made[name], "swapped")
        self._done(self.world.do("resume", self.made[name]))
        self.world.until_state(self.made[name], "running")

    def _all_end(self) -> None:
        nobody_stopped(self.world)
        for container in self.made.values():
            if self.world.get(container).finished_at is None:
                self._done(self.world.do("kill", container, grace=0.0))
        self._removed()


class Turns(_Turning):
    """By weight and limit, which change; one is paused, one moved out and back, one killed in its turn; all go on when
    the scheduler ends in the middle of it."""

    expected = {"heavy": (_PAUSED_ONCE,), "light": (_PAUSED_ONCE,), "brief": (_BY_HAND,)}

    def play(self) -> None:
        world = self.world
        self._launched({
            "heavy": self._begin("heavy", _COMPUTES, gpu_memory=_MEMORY, compute_weight=300),
            "light": self._begin("light", _COMPUTES, gpu_memory=_MEMORY, compute_weight=100),
            "brief": self._begin("brief", _COMPUTES, gpu_memory=_MEMORY, compute_limit=30),
        })  # fmt: skip
        heavy, light, brief = self.made.values()
        self._take_turns("heavy", "light", "brief")
        world.card("sim_card_speed 0 0")  # to move memory takes no time
        self._done(world.do("change", heavy, compute_weight=100, priority=1))
        self._done(world.do("change", light, compute_weight=200, compute_limit=60))
        self._done(world.do("pause", light))
        self._moved_out_and_back("heavy")
        self._done(world.do("resume", light))
        self._done(world.do("change", heavy, priority=0))
        for how in ("shared", "turns"):
            self._done(world.do("compute", gpu=Gpu.objects.get().uuid, compute=how))
        world.interrupt(lambda: nobody_stopped(world), signal.SIGTERM)
        world.until(lambda: self._has_turn("brief"), "brief has no turn any more")
        self._done(world.do("kill", brief, grace=0.0))
        self._all_end()


class Stuck(_Turning):
    """Guardian and workers die, or stand still, over turns; a program cannot be stopped, and another begins while its
    container is."""

    expected = {"one": (_BY_HAND,), "two": (_BY_HAND,)}

    def play(self) -> None:
        world = self.world
        self._launched({
            "one": self._begin("one", _COMPUTES, gpu_memory=_MEMORY),
            "two": self._begin("two", _TWO_COMPUTE, gpu_memory=2 * _MEMORY),
        })  # fmt: skip
        self._take_turns("one", "two")
        _signal([*self._its(_GUARDIAN), *self._its(b"card/worker.py")], signal.SIGKILL)
        self._take_turns("one", "two")
        self._stands_still(self._its(_GUARDIAN))
        self._cannot_be_stopped()
        world.interrupt(lambda: nobody_stopped(world))
        self._all_end()

    def _its(self, program: bytes) -> set[int]:
        """Those of the scheduler's own processes that run this."""
        found = set()
        for child in (each for parent in self.world.pids("scheduler") for each in tree.descendants(parent)):
            with contextlib.suppress(OSError):  # it has ended
                if program in Path(f"/proc/{child.pid}/cmdline").read_bytes():
                    found.add(child.pid)
        return found

    def _stands_still(self, guardians: set[int]) -> None:
        """Returns once another has its place. One whose scheduler has died meanwhile would stand still for ever."""
        _signal(guardians, signal.SIGSTOP)
        self.world.until(lambda: not guardians & self._its(_GUARDIAN), "a guardian that stands still is not replaced")
        _signal(guardians, signal.SIGKILL)

    def _cannot_be_stopped(self) -> None:
        """Each lock fails, until an event reports it."""

        def reported() -> bool:
            self.world.card(f"sim_card_fault {LOCK} {FAILS}")
            return any(self.world.events(container, "not_stopped") for container in self.made.values())

        self.world.until(reported, "no event says that a program cannot be stopped")
        self.world.card("sim_card_fault 0 0")


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# One thread asks all the time whether the card is done, as NCCL's do, and says so now and then; another computes.
_ASKS = f"""
import sys, threading, time
sys.path[:0] = {[str(ROOT), *sys.path]!r}
from tests.support.cuda import *
cuda = Cuda()
cuda.alloc(64 * MIB)

def asks():
    own = Cuda()
    while True:
        for _ in range(200):
            own("cuCtxSynchronize")
            time.sleep(0.0005)
        print("asked", flush=True)

threading.Thread(target=asks, daemon=True).start()
while True:
    cuda.compute(1, 20)
    cuda("cuCtxSynchronize")
"""


class Asking(_Turning):
    """One asks its card all the time, while it is locked and moved; one got past the shim; one is alone with a limit.

    With local processes only: Docker's image has no Python.
    """

    expected = {"asker": (_PAUSED_ONCE,), "past": (_BY_HAND,), "other": (_BY_HAND,)}

    def play(self) -> None:
        world = self.world
        words = "sh", "-c", 'echo began; exec "$0" -c "$1"', sys.executable, _ASKS
        self._launched({
            "asker": world.begin_launch("asker", *words, gpu_memory=_MEMORY, give_way=False),
            "other": self._begin("other", _COMPUTES, gpu_memory=_MEMORY),
            "past": self._begin("past", f"exec env -u LD_PRELOAD {_HOLDS}", gpu_memory=_MEMORY),
        })  # fmt: skip
        self._take_turns("asker", "other")
        world.until(lambda: world.events(self.made["past"], "bypass"), "nobody says who got past the shim")
        world.card("sim_card_speed 0 0")
        self._moved_out_and_back("asker")
        world.interrupt(lambda: nobody_stopped(world))
        before = world.log(self.made["asker"]).count("asked")
        world.until(lambda: world.log(self.made["asker"]).count("asked") > before + 1, "it asks no more")
        self._done(world.do("kill", self.made["other"], grace=0.5))
        self._done(world.do("change", self.made["asker"], compute_limit=20))
        self._take_turns("asker")
        self._all_end()
