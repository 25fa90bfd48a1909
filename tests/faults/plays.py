"""The plays: what the scheduler can do to containers, what happens while it is away, and what goes wrong by itself."""

import contextlib
import os
import signal
from pathlib import Path

from tests.faults.scene import Kind, Scene
from tests.faults.world import GIB
from web.models import Command, Container

HOLD = "exec {workload} --bytes 3GiB --check 1MiB --hold 600"
# A container's first process is deaf to SIGTERM otherwise, and the whole grace would be waited for.
POLITE = "trap 'exit 143' TERM; sleep 600 & wait"
_LIFE = {Kind.STARTED: 1, Kind.ENDED: 1}
_KILLED = {**_LIFE, Kind.KILLED: 1}
_PAUSED = {Kind.PAUSED: 1, Kind.UNPAUSED: 1}
_BY_HAND = ("killed", (137, 143), "Killed by", _KILLED, 1)
# A waiting call is rejected first, and if the scheduler dies then, its program can end by itself.
_WAITER = ("killed", (1, 2, 137, 143), "Killed by", _KILLED, 1)
_IN_TIME = ("killed", (137, 143), "Its time limit of 1 s was reached.", _KILLED, 1)
_NEVER = ("failed", (None,), "", {}, 0)


class Everyday(Scene):
    """Launch, suspend, pause, resume, change, let time run out, kill, remove."""

    expected = {
        "holder": (("killed", (137,), "Killed by", {**_KILLED, **_PAUSED}, 1),),
        "waiter": (_BY_HAND,),
        "late": (_IN_TIME,),
        "three": (("failed", (3,), "", _LIFE, 1),),
        "broken": (("failed", (None,), "/nowhere/program", {}, 0),),
        "large": (_NEVER,),
    }

    def play(self) -> None:
        world = self.world
        self._launch("holder", HOLD, gpu_memory=4 * GIB)
        self._says("holder", "holding")
        self._launched({
            "waiter": self._begin("waiter", HOLD, gpu_memory=4 * GIB),
            "three": self._begin("three", "exit 3", remove_when_done=True),
            "late": self._begin("late", POLITE, ttl_seconds=1.0),
            "broken": world.begin_launch("broken", "/nowhere/program", gpu_memory=GIB // 8),
            "large": world.begin_launch("large", "true", gpu_memory=60 * GIB),
        })  # fmt: skip
        holder, waiter = self.made["holder"], self.made["waiter"]
        world.until_state(waiter, "suspended")
        self._done(world.do("pause", holder))
        world.until_state(holder, "paused")
        self._done(world.do("resume", holder))
        world.until_state(holder, "running")
        self._done(world.do("change", holder, gpu_memory=4 * GIB - GIB // 2))
        self._done(world.do("change", waiter, priority=3))
        self._done(world.do("kill", holder, grace=0.0))
        world.until_state(holder, "killed")
        self._says("waiter", "holding")
        self._done(world.do("kill", waiter, grace=0.5))
        world.until_state(waiter, "killed")
        world.until_state(self.made["late"], "killed")
        world.until_state(self.made["three"], "failed")
        self._removed("holder", "waiter", "late")


class Away(Scene):
    """The scheduler is away while one waits, one is paused, some end, and people ask for things."""

    expected = {
        "holder": (_BY_HAND,),
        "waiter": (("killed", (137, 143), "Killed by", _KILLED, 1),),
        "frozen": (("killed", (137, 143), "Killed by", {**_KILLED, **_PAUSED}, 1),),
        "leaver": (("failed", (3,), "", _LIFE, 1),),
        "done": (("exited", (0,), "", _LIFE, 1),),
        "late": (_IN_TIME,),
        "new": (("exited", (0,), "", _LIFE, 1),),
    }

    def play(self) -> None:
        world = self.world
        self._launched({
            "holder": self._begin("holder", HOLD, gpu_memory=4 * GIB),
            "frozen": self._begin("frozen", "exec sleep 600"),
            "leaver": self._begin("leaver", "sleep 600; exit 3"),
            "done": self._begin("done", "sleep 600; exit 0", remove_when_done=True),
        })  # fmt: skip
        self._says("holder", "holding")
        self._launched({
            "waiter": self._begin("waiter", HOLD, gpu_memory=4 * GIB),
            "late": self._begin("late", POLITE, ttl_seconds=1.0),
        })  # fmt: skip
        world.until_state(self.made["waiter"], "suspended")
        self._done(world.do("pause", self.made["frozen"]))
        asked: dict[str, Command] = {}

        def meanwhile() -> None:
            for name in ("leaver", "done"):
                self._wake(self.made[name])
            asked["new"] = self._begin("new", "exit 0", remove_when_done=True)
            asked["kill"] = world.begin("kill", self.made["holder"], grace=0.0)

        world.interrupt(meanwhile)
        self._launched({"new": asked["new"]})
        self._done(world.outcome(asked["kill"]))
        self._says("waiter", "holding")
        self._done(world.do("resume", self.made["frozen"]))
        for name in ("frozen", "waiter"):
            self._done(world.do("kill", self.made[name], grace=0.0))
        for name in ("leaver", "late"):
            world.until(lambda: world.get(self.made[name]).finished_at, f"{name} does not end")  # noqa: B023
        self._removed("holder", "waiter", "frozen", "leaver", "late")

    def _wake(self, container: Container) -> None:
        """Has its `sleep` end, and its shell go on: by no scheduler's order."""
        for id_, _, programs in self.world.containers_processes():
            for pid in programs if id_ == str(container.pk) else ():
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"):
                    os.kill(pid, signal.SIGTERM)
        # Nothing of it is to be there when the next scheduler looks.
        self.world.until(lambda: str(container.pk) not in self._living(), f"{container.name} goes on")

    def _living(self) -> set[str]:
        return {id_ for id_, _, programs in self.world.containers_processes() if programs}


class Refused(Scene):
    """What is refused, called off, too much, or harmed from outside; and what only an admin asks for."""

    expected = {
        "holder": (_BY_HAND,),
        "over": (("failed", (2,), "", _LIFE, 1),),
        "called": (("killed", (None,), "", {}, 0), ("killed", (None,), "", {Kind.KILLED: 1}, 0),
                   ("killed", (None,), "", {Kind.KILLED: 1}, 1), ("failed", (None,), "", {}, 0),
                   ("killed", (None, 137), "Killed by", _KILLED, 1), ("killed", (None, 137), "Killed by", _KILLED, 0)),
        "tough": (("killed", (137,), "Killed by", _KILLED, 1),),
        "harmed": (("failed", (None, 137), "", _LIFE, 1),),
        "other": (("exited", (0,), "", _LIFE, 1),),
    }  # fmt: skip

    def play(self) -> None:
        world = self.world
        self._launched({
            "holder": self._begin("holder", HOLD, gpu_memory=4 * GIB),
            "over": self._begin("over", "exec {workload} --bytes 512MiB --check 1MiB", gpu_memory=GIB // 4),
            "tough": self._begin("tough", "trap '' TERM; echo deaf; while :; do sleep 1; done"),
            "harmed": self._begin("harmed", "sleep 600"),
        })  # fmt: skip
        self._says("holder", "holding")
        self._says("tough", "deaf")
        holder, tough = self.made["holder"], self.made["tough"]
        for kind, arguments in (
            ("forecast", {"gpu_memory": 4 * GIB}),
            ("policy", {"policy": "best-fit"}),
            ("reorder", {"containers": [str(holder.pk)]}),
        ):
            self._done(world.do(kind, **arguments))
        self._refused(world.do("change", holder, gpu_memory=60 * GIB))
        self._refused(world.do("remove", holder))
        self._refused(world.do("policy", policy="none"))
        self._refused(world.do("pause"))
        self._refused(world.do("dance", holder))
        launch = self._begin("called", "exec sleep 600")
        off = world.begin("kill", launch.container, grace=0.0)
        gently = world.begin("kill", tough, grace=60.0)
        world.until(lambda: Command.objects.get(pk=gently.pk).taken_at, "the kill is not begun")
        self._done(world.do("kill", tough, grace=0.0))
        self._done(world.outcome(gently))
        self._done(world.outcome(off))
        self._launched({"called": launch})
        self._harm(self.made["harmed"])
        for name in ("over", "harmed"):
            world.until(lambda: world.get(self.made[name]).finished_at, f"{name} does not end")  # noqa: B023
        self._refused(world.do("pause", tough))
        self._launch("other", "exec {workload} --bytes 64MiB --check 1MiB", gpu_memory=GIB // 4, remove_when_done=True)
        world.until_state(self.made["other"], "exited")
        self._done(world.do("kill", holder, grace=0.0))
        for name in ("over", "holder", "tough", "harmed", "called"):
            if world.get(self.made[name]).removed_at is None:
                self._done(world.do("remove", self.made[name]))
        self._all_over()

    def _harm(self, container: Container) -> None:
        for id_, keeper, programs in self.world.containers_processes():
            if id_ == str(container.pk):
                os.kill(keeper if self.world.docker is None else programs[0], signal.SIGKILL)


class Swapped(Scene):
    """GPU memory goes to host memory and comes back, waits for room, and ends while it is out."""

    expected = {
        "holder": (("killed", (137,), "Killed by", {**_KILLED, Kind.PAUSED: 2, Kind.UNPAUSED: 1}, 1),),
        "waiter": (_BY_HAND,),
        # Thawed to have its memory moved, and frozen again: as often as that is begun.
        "ends": tuple(
            ("killed", (137,), "Killed by", {**_KILLED, Kind.PAUSED: times, Kind.UNPAUSED: times}, 1)
            for times in (1, 2, 3)
        ),
        "light": (("killed", (137,), "Killed by", {**_KILLED, Kind.PAUSED: 1}, 1),),
    }

    def play(self) -> None:
        world = self.world
        self._launch("holder", HOLD, gpu_memory=4 * GIB)
        self._says("holder", "holding")
        world.card("sim_card_speed 0 0")  # to move memory takes no time
        self._launch("waiter", HOLD, gpu_memory=4 * GIB)
        holder, waiter = self.made["holder"], self.made["waiter"]
        world.until_state(waiter, "suspended")
        self._done(world.do("pause", holder, free_memory=True))
        world.until_state(holder, "swapped")
        self._says("waiter", "holding")
        self._refused(world.do("pause", waiter, free_memory=True))  # host memory has no room for both
        self._done(world.do("pause", holder, free_memory=True))  # it is so already
        self._done(world.do("resume", holder))
        world.until(lambda: world.get(holder).paused_at is None, "the holder does not wait to come back")
        self._done(world.do("kill", waiter, grace=0.0))
        world.until_state(holder, "running")
        self._done(world.do("pause", holder, free_memory=True))
        self._launch("ends", "exec {workload} --bytes 512MiB --check 1MiB --hold 600", gpu_memory=GIB)
        self._says("ends", "holding")
        self._done(world.do("pause", self.made["ends"]))
        self._done(world.do("pause", self.made["ends"], free_memory=True))  # frozen already
        self._done(world.do("resume", self.made["ends"]))
        world.until_state(self.made["ends"], "running")
        self._launch("light", "exec sleep 600", owner="bob")
        self._refused(world.do("pause", self.made["ends"], free_memory=True))  # it would leave too little for bob
        self._done(world.do("pause", self.made["light"], free_memory=True))  # it has nothing to free
        for name in ("holder", "ends", "light"):
            self._done(world.do("kill", self.made[name], grace=0.0))
        self._removed("holder", "waiter", "ends", "light")


class Waits(Scene):
    """Waits that end without memory: at once, in time, by the waiter's own end; quota lowered; two kills; a removal."""

    expected = {
        "holder": (("failed", (None,), "removed outside", _LIFE, 1), ("failed", (None, 137), "", _LIFE, 1)),
        "never": (("failed", (2,), "", _LIFE, 1),),
        "short": (("failed", (2,), "", _LIFE, 1),),
        "goner": (("failed", (137, 143), "", _LIFE, 1), ("killed", (137, 143), "", _LIFE, 1)),
        "twice": (("killed", (137,), "Killed by", _KILLED, 1),),
        "shrunk": (_BY_HAND,),
    }

    def play(self) -> None:
        world = self.world
        take = "{workload} --bytes 3GiB --check 1MiB"
        self._launch("holder", HOLD, gpu_memory=4 * GIB)
        self._says("holder", "holding")
        self._launched({
            "never": self._begin("never", f"exec {take}", gpu_memory=4 * GIB, on_shortage="fail"),
            "short": self._begin("short", f"exec {take}", gpu_memory=4 * GIB, max_wait_seconds=0.5),
            "goner": self._begin("goner", f"exec {take}", gpu_memory=4 * GIB),
            "twice": self._begin("twice", "trap '' TERM; echo deaf; while :; do sleep 1; done"),
            "shrunk": self._begin("shrunk", "{workload} --bytes 256MiB --hold 600", gpu_memory=GIB),
        })  # fmt: skip
        for name in ("never", "short"):
            world.until_state(self.made[name], "failed")
        world.until_state(self.made["goner"], "suspended")
        self._signal("goner", signal.SIGKILL)
        world.until(lambda: world.get(self.made["goner"]).finished_at, "goner does not end")
        self._done(world.do("change", self.made["shrunk"], gpu_memory=GIB // 2))
        self._says("twice", "deaf")
        first = world.begin("kill", self.made["twice"], grace=60.0)
        world.until(lambda: Command.objects.get(pk=first.pk).taken_at, "the kill is not begun")
        second = world.begin("kill", self.made["twice"], grace=0.0)
        for command in (first, second):
            self._done(world.outcome(command))
        self._take_away("holder")
        world.until(lambda: world.get(self.made["holder"]).finished_at, "the holder does not end")
        self._done(world.do("kill", self.made["shrunk"], grace=0.0))
        for name in self.made:
            if world.get(self.made[name]).removed_at is None:
                self._done(world.do("remove", self.made[name]))
        self._all_over()

    def _signal(self, name: str, number: int) -> None:
        for id_, _, programs in self.world.containers_processes():
            for pid in programs if id_ == str(self.made[name].pk) else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _take_away(self, name: str) -> None:
        """Somebody removes it by the engine's own means, or kills all of it."""
        if self.world.docker is None:
            self._signal(name, signal.SIGKILL)
        else:
            self.world.docker.remove_container(self.world.get(self.made[name]).engine_id, force=True)
