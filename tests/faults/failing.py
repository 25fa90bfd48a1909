"""Plays in which the engine, the card, the database or the host refuses an act: what was wanted comes about later.

While the trouble lasts it is the same for a scheduler that has just started, so the facts stay the same, too.
"""

from tests.faults.plays import _BY_HAND, _KILLED, _LIFE, _NEVER, HOLD, POLITE
from tests.faults.scene import Kind, Scene
from tests.faults.world import GIB
from web.models import Command, Container

_SMALL = "exec {workload} --bytes 512MiB --check 1MiB --hold 600"
_PAUSED_ONCE = {**_KILLED, Kind.PAUSED: 1, Kind.UNPAUSED: 1}


class Failing(Scene):
    """Each act fails, by each kind of error; so do launches, before and after they are done, and removals."""

    expected = {
        "frozen": (("killed", (137, 143), "Killed by", _PAUSED_ONCE, 1),),
        "unwritten": (_BY_HAND,),
        "unread": (_BY_HAND,),
        "late": (("killed", (137, 143), "Its time limit of 1 s was reached.", _KILLED, 1),),
        "refuses": (_NEVER,),
        "away": (_NEVER,),
        "full": (_NEVER,),
        "bug": (_NEVER,),
        # It ran, and no answer said so; unless the scheduler that was to say so was followed by one that saw it run.
        "lost": (("failed", (None,), "", {}, 1), ("failed", (None,), "", {}, 0), _BY_HAND),
        "done": (("exited", (0,), "", _LIFE, 1),),
        "gone": (("exited", (0,), "", _LIFE, 1),),
    }

    def play(self) -> None:
        world = self.world
        self._launched({
            "frozen": self._begin("frozen", "exec sleep 600"),
            "unwritten": self._begin("unwritten", POLITE),
            "unread": self._begin("unread", POLITE),
        })  # fmt: skip
        with world.trouble("fail-launch", "late away"):
            lost = world.outcome(self._begin("lost", POLITE))
        self.made["lost"] = lost.container  # type: ignore[assignment]
        for how in ("refuses", "away", "full", "bug"):
            with world.trouble("fail-launch", how):
                self._launch(how, "exec sleep 600")
        self._frozen(self.made["frozen"])
        with world.trouble("fail-remove", "refuses"):
            self._launched({
                "done": self._begin("done", "exit 0", remove_when_done=True),
                "gone": self._begin("gone", "exit 0"),
            })  # fmt: skip
            for name in ("done", "gone"):
                world.until_state(self.made[name], "exited")
            self._refused(world.do("remove", self.made["gone"]))
            self._is_logged("has ended but cannot be removed", 2)  # at its end, and later again
        self._without_database("unwritten")
        self._without_database("unread")
        with world.trouble("fail-kill", "bug"):
            self._launch("late", POLITE, ttl_seconds=1.0)
            world.until(lambda: world.get(self.made["late"]).kill_requested_at, "its time is never over")
        for name in ("frozen", "unwritten", "unread", "late"):
            world.until_state(self.made[name], "killed")
        if lost.outcome == Command.Outcome.DONE:
            world.do("kill", self.made["lost"], grace=0.0)
        for name, container in self.made.items():
            if name != "done" and world.get(container).removed_at is None:
                self._done(world.do("remove", container))
        self._all_over()

    def _frozen(self, container: Container) -> None:
        world = self.world
        for how in ("refuses", "full", "bug"):
            with world.trouble("fail-pause", how):
                self._refused(world.do("pause", container))
        self._done(world.do("pause", container))
        with world.trouble("fail-resume", "away"):
            self._refused(world.do("resume", container))
        self._done(world.do("resume", container))
        with world.trouble("fail-kill", "refuses"):
            self._refused(world.do("kill", container, grace=0.0))

    def _without_database(self, name: str) -> None:
        """It is wanted dead meanwhile, and its engine is away; it dies after that, whatever the answer is."""
        log = self.world.home / "scheduler.log"
        before = log.stat().st_size
        with self.world.trouble("fail-statuses", "away"), self.world.trouble(name):
            change = self.world.begin("change", self.made[name], gpu_memory=GIB // 4)
            kill = self.world.begin("kill", self.made[name], grace=0.0)
            self.world.until(
                lambda: any(words in log.read_text()[before:] for words in ("he database", "made to fail")),
                f"the database is {name}, and nobody says so",
            )
        for command in (change, kill):
            self.world.outcome(command)

    def _is_logged(self, words: str, times: int) -> None:
        log = self.world.home / "scheduler.log"
        self.world.until(lambda: log.read_text().count(words) >= times, f"nobody says {words!r}")


class Unmoved(Scene):
    """GPU memory that the card, or the engine, does not let go, or does not let come back for a while; or loses."""

    expected = {
        "holder": (("killed", (137,), "Killed by", {**_KILLED, Kind.PAUSED: 2, Kind.UNPAUSED: 2}, 1),
                   ("killed", (137,), "Killed by", {**_KILLED, Kind.PAUSED: 3, Kind.UNPAUSED: 3}, 1),
                   ("killed", (137,), "Killed by", {**_KILLED, Kind.PAUSED: 4, Kind.UNPAUSED: 4}, 1)),
        "victim": (("killed", (137,), "Its GPU memory was lost", _PAUSED_ONCE, 1),
                   ("killed", (137,), "Its GPU memory was lost", {**_KILLED, Kind.PAUSED: 1}, 1)),
    }  # fmt: skip

    def play(self) -> None:
        world = self.world
        self._launched({name: self._begin(name, _SMALL, gpu_memory=GIB) for name in ("holder", "victim")})
        world.card("sim_card_speed 0 0")  # to move memory takes no time
        holder, victim = self.made["holder"], self.made["victim"]
        for name in self.made:
            self._says(name, "holding")
        for call, how in (("add_memory", "refuses"), ("checkpoint", "cannot"), ("state", "no_room")):
            with world.trouble(f"fail-{call}", how):
                self._refused(world.do("pause", holder, free_memory=True))
            world.until(lambda: not world.get(holder).swap, "it is not as it was")
        self._done(world.do("pause", holder))
        with world.trouble("fail-lock", "busy"):
            self._refused(world.do("pause", holder, free_memory=True))  # thawed for that, and frozen again
        self._done(world.do("resume", holder))
        self._done(world.do("pause", victim, free_memory=True))
        self._done(world.do("pause", holder, free_memory=True))
        with world.trouble("fail-restore", "lost"):
            self._done(world.do("resume", victim))
            world.until(lambda: world.get(victim).finished_at, "what has lost its memory is not ended")
        with world.trouble("fail-unlock", "hung"):
            self._done(world.do("resume", holder))
            world.until(lambda: world.get(holder).paused_at is None, "it is not resumed")
        world.until_state(holder, "running")
        self._done(world.do("kill", holder, grace=0.0))
        self._removed()


class Given(Scene):
    """An idle holder gives way to who waits, is paused and resumed meanwhile, and comes back; another one cannot."""

    expected = {
        "stays": (_BY_HAND,),
        "holder": (("killed", (137,), "Killed by", _PAUSED_ONCE, 1),),
        "waiter": (_BY_HAND,),
        "next": (_BY_HAND,),
    }

    def play(self) -> None:
        world = self.world
        with world.trouble("idle"):
            self._launch("stays", HOLD, gpu_memory=4 * GIB, give_way=True)
            self._says("stays", "holding")
            world.card("sim_card_speed 0 0")
            with world.trouble("fail-checkpoint", "cannot"):
                self._launch("next", HOLD, gpu_memory=4 * GIB)
                world.until_state(self.made["next"], "suspended")
                stays = self.made["stays"]
                world.until(lambda: world.events(stays, "not_moved"), "nobody says that it cannot give way")
            self._done(world.do("kill", stays, grace=0.0))
            self._says("next", "holding")
            self._done(world.do("kill", self.made["next"], grace=0.0))
            self._launch("holder", HOLD, gpu_memory=4 * GIB, give_way=True)
            self._says("holder", "holding")
            self._launch("waiter", HOLD, gpu_memory=4 * GIB)
            self._says("waiter", "holding")
        holder = world.until_state(self.made["holder"], "swapped")
        self._done(world.do("pause", holder, free_memory=True))  # it is out already
        self._done(world.do("resume", holder))
        self._done(world.do("kill", self.made["waiter"], grace=0.0))
        world.until_state(holder, "running")
        self._done(world.do("kill", holder, grace=0.0))
        self._removed()
