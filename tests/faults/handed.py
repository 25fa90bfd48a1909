"""A play of two nodes: what the first is asked for it hands to a Swarm, which brings it to the second, or does not.

The first's scheduler is the one that dies; the second's lives on. Both are real, and so is their PostgreSQL.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone

from tests.faults.placing import SECOND, changed, orders, spared
from tests.faults.plays import _BY_HAND, _LIFE, _NEVER
from tests.faults.scene import Kind, Scene
from tests.faults.second import second
from tests.faults.world import GIB, retried
from web.models import Command, Gpu, Node

SAYS = "no suitable node (2 nodes not available for new tasks)"
# It never came to a node: who ends it says so, and nothing of it ever ran.
_CALLED_OFF = ("killed", (None,), "Killed by", {Kind.KILLED: 1, Kind.ENDED: 1}, 0)
_TAKEN_AWAY = ("failed", (None,), "It was removed from the Swarm", {Kind.ENDED: 1}, 0)
_NOT_BEGUN = ("failed", (None,), "It has not begun: ", {Kind.ENDED: 1}, 0)


class Handed(Scene):
    """Launches come to another node, wait, are called off, lost, refused; kills follow them; a node is drained."""

    swarm: Path
    expected = {
        "local": (_BY_HAND,),
        "done": (("exited", (0,), "", _LIFE, 1),),
        "twice": (_BY_HAND,),
        "named": (_BY_HAND,),
        "off": (_CALLED_OFF,),
        "lost": (_TAKEN_AWAY,),
        "fails": (_NOT_BEGUN,),
        "unmounted": (_NOT_BEGUN,),
        **dict.fromkeys(
            ("large", "huge", "far", "rests", "typed", "again", "labelled", "there", "apart", "nowhere", "undeclared"),
            (_NEVER,),
        ),
    }

    def prepare(self) -> None:
        self.swarm = self.world.home / "swarm"
        self.swarm.mkdir()
        self._hosts()
        # One that speaks for another Swarm: two at once would each take the other's launches for taken away.
        Node.objects.create(name="stranger", placer="swarm 2", seen_at=timezone.now())

    def play(self) -> None:
        world, here = self.world, Node.objects.filter(name=settings.GPUSHARE_NODE)
        world.until(here.filter(engine_error__contains="two different Swarms").exists, "two speak for two Swarms")
        Node.objects.filter(name="stranger").delete()
        world.until(here.filter(placer="swarm 1").exists, "it does not speak for its Swarm")
        with second(world):
            self._launch("local", "exec sleep 600", gpu_memory=GIB, node_asked=settings.GPUSHARE_NODE)
            self._come_to_the_second()
            self._wait()
            self._are_refused()
            # The first is asked, as by a page of before it came to the second: it passes that on.
            for kill in [self._kill(name) for name in ("local", "twice", "named")]:
                self._done(world.outcome(kill))
            for name in ("done", "unmounted"):
                world.until(lambda: world.get(self.made[name]).finished_at, f"{name} does not end")  # noqa: B023
            world.until(lambda: not orders(self.swarm), f"the Swarm still has {orders(self.swarm)}")
            left = [container for container in self.made.values() if world.get(container).removed_at is None]
            for removal in [world.begin("remove", container) for container in left]:
                self._done(world.outcome(removal))
            self._all_over()

    def _come_to_the_second(self) -> None:
        world = self.world
        theirs = Gpu.objects.get(node__name=SECOND)
        Node.objects.filter(name=SECOND).update(drained_at=timezone.now())
        world.until(lambda: SECOND in spared(self.swarm), "nobody tells the Swarm that a node is drained")
        self._launched({
            "done": self._hand("done", "exit 0"),
            "twice": self._hand("twice", "exec sleep 600"),
            "unmounted": self._hand("unmounted", "exit 0"),
        })  # fmt: skip
        rests = self._hand("rests", "exit 0", gpu_uuids=[theirs.uuid])
        self._launched({"rests": rests})
        self._refused(world.outcome(rests))
        Node.objects.filter(name=SECOND).update(drained_at=None)
        world.until(lambda: SECOND not in spared(self.swarm), "nobody tells the Swarm that it is so no more")
        self._launched({"named": self._hand("named", "exec sleep 600", gpu_uuids=[theirs.uuid])})
        for name in ("twice", "named"):
            world.until_state(self.made[name], "running")
        twice = self.made["twice"]
        world.until(lambda: "refused" in orders(self.swarm).get(str(twice.pk), {}), "nobody begins it twice")
        # As a scheduler does that died before it could say that it was done.
        again = {"kind": Command.Kind.LAUNCH, "container": twice, "node": self._here(), "issued_by": twice.owner}
        self._done(world.outcome(retried(lambda: Command.objects.create(**again))))

    def _wait(self) -> None:
        """And come to no node: called off, taken away by somebody, given up by the Swarm."""
        world = self.world
        (self.swarm / "hold").write_text(SAYS)
        self._launched({name: self._hand(name, "exec sleep 600") for name in ("off", "lost")})
        off, lost = self.made["off"], self.made["lost"]
        for container in (off, lost):
            world.until(lambda: world.get(container).queue_reason == SAYS, "nobody says why it waits")  # noqa: B023
        self._refused(world.do("pause", off))
        kill = world.begin("kill", off, grace=0.0)
        with changed(self.swarm, str(lost.pk)) as order:
            order.clear()
        self._done(world.outcome(kill))
        world.until(lambda: world.get(lost).finished_at, "nobody sees that it was taken away")
        (self.swarm / "hold").unlink()
        for call, how in (("standing", "away"), ("take_back", "away"), ("take_back", "refuses")):
            with self._failing(call, how):
                if "fails" not in self.made:
                    self._launched({"fails": self._hand("fails", "exit 0")})
        world.until(lambda: world.get(self.made["fails"]).finished_at, "nobody sees that it cannot begin")

    @contextlib.contextmanager
    def _failing(self, call: str, how: str) -> Iterator[None]:
        """Until it has once."""
        (self.swarm / f"fail {call}").write_text(how)
        yield
        self.world.until((self.swarm / "failed").exists, f"nobody asks for {call}")
        (self.swarm / f"fail {call}").unlink()
        (self.swarm / "failed").unlink()

    def _are_refused(self) -> None:
        uuids = list(Gpu.objects.values_list("uuid", flat=True))
        theirs = Gpu.objects.get(node__name=SECOND)
        asked: dict[str, dict[str, Any]] = {
            "large": {"gpu_memory": 60 * GIB},
            "far": {"gpu_memory": 10 * GIB},  # which only one could give that is away
            "typed": {"interactive": True},
            "again": {"restart": "always", "remove_when_done": True},
            "labelled": {"constraints": ["node.labels.disk==tape"]},
            "there": {"constraints": ["node.labels.disk==ssd"]},
            "apart": {"gpu_uuids": uuids},
            "huge": {"gpu_uuids": [theirs.uuid], "gpu_memory": 10 * GIB},
        }
        commands = {name: self._hand(name, "true", **fields) for name, fields in asked.items()}
        self._launched(commands)
        for name, fields in (("nowhere", {"there": False}), ("undeclared", {"declared": {}})):
            self._hosts(**fields)
            commands[name] = self._hand(name, "true")
            self._launched({name: commands[name]})
        self._hosts()
        for command in commands.values():
            self._refused(self.world.outcome(command))

    # ---- helpers ----

    def _hosts(self, **all_of_them: Any) -> None:
        """What the Swarm has: both nodes, and one that is away."""
        ssd = {"disk": "ssd"}
        hosts = [
            {"name": name, "declared": {0: size}, "labels": labels, "there": there, **all_of_them}
            for name, size, labels, there in (
                (settings.GPUSHARE_NODE, 5 * GIB, {}, True), (SECOND, 5 * GIB, {}, True), ("away", 20 * GIB, ssd, False)
            )
        ]  # fmt: skip
        (self.swarm / "new").write_text(json.dumps(hosts))
        (self.swarm / "new").rename(self.swarm / "hosts")

    def _hand(self, name: str, script: str, **fields: Any) -> Command:
        return self._begin(name, script, **{"node_asked": "", **fields})

    def _here(self) -> Node:
        return Node.objects.get(name=settings.GPUSHARE_NODE)

    def _kill(self, name: str) -> Command:
        asked = {"kind": Command.Kind.KILL, "node": self._here(), "arguments": {"grace": 0.0}}
        return retried(lambda: Command.objects.create(container=self.made[name], **asked))
