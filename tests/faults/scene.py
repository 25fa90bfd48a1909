"""One short play in which everything is done to containers that the scheduler can do, and the facts that must come out.

The facts are the same whenever, and however often, the scheduler is killed while it plays: that is the whole promise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.faults.world import GIB, World
from web.models import AllocationEvent, Claim, Command, Container

Kind = AllocationEvent.Kind


@dataclass
class Facts:
    """What became of a container. `events`: how often each of the things happened that may happen only once."""

    state: str
    exit_code: int | None
    reason: str
    removed: bool
    events: dict[str, int]
    began: int  # how often its program was started
    held: int  # bytes that the records say it holds


@dataclass
class Scene:
    """`tag` keeps the names of one round apart from another's."""

    world: World
    tag: str
    made: dict[str, Container] = field(default_factory=dict)

    def play(self) -> None:
        """Raises Wrong if something that must come about does not."""
        world = self.world
        self._launch("holder", "exec {workload} --bytes 3GiB --check 1MiB --hold 600", gpu_memory=4 * GIB)
        self._says("holder", "holding")
        waiter = self._begin("waiter", "exec {workload} --bytes 3GiB --check 1MiB --hold 600", gpu_memory=4 * GIB)
        three = self._begin("three", "exit 3", gpu_memory=GIB // 8, remove_when_done=True)
        late = self._begin("late", "exec sleep 600", gpu_memory=GIB // 8, ttl_seconds=1.0)
        broken = world.begin_launch(self._name("broken"), "/nowhere/program", gpu_memory=GIB // 8)
        large = world.begin_launch(self._name("large"), "true", gpu_memory=60 * GIB)
        for name, command in (
            ("waiter", waiter),
            ("three", three),
            ("late", late),
            ("broken", broken),
            ("large", large),
        ):
            self.made[name] = world.outcome(command).container  # type: ignore[assignment]
        holder = self.made["holder"]
        world.until_state(self.made["waiter"], "suspended")
        self._done(world.do("pause", holder))
        world.until_state(holder, "paused")
        self._done(world.do("resume", holder))
        world.until_state(holder, "running")
        self._done(world.do("change", holder, gpu_memory=4 * GIB - GIB // 2))
        self._done(world.do("change", self.made["waiter"], priority=3))
        self._done(world.do("kill", holder, grace=0.0))
        world.until_state(holder, "killed")
        self._says("waiter", "holding")
        self._done(world.do("kill", self.made["waiter"], grace=2.0))
        world.until_state(self.made["waiter"], "killed")
        world.until_state(self.made["late"], "killed")
        world.until_state(self.made["three"], "failed")
        for name in ("holder", "waiter", "late"):
            self._done(world.do("remove", self.made[name]))
        world.until(lambda: all(facts.removed and not facts.held for facts in self.facts().values()), self._still())

    def facts(self) -> dict[str, Facts]:
        return {name: self._facts(container) for name, container in self.made.items()}

    def _facts(self, container: Container) -> Facts:
        found = Container.objects.get(pk=container.pk)
        kinds = [event.kind for event in self.world.events(found)]
        once = (Kind.STARTED, Kind.ENDED, Kind.KILLED, Kind.PAUSED, Kind.UNPAUSED)
        claims = Claim.objects.filter(container=found)
        return Facts(
            state=str(found.state),
            exit_code=found.exit_code,
            reason=found.reason,
            removed=found.removed_at is not None,
            events={kind: count for kind in once if (count := kinds.count(kind))},
            began=self.world.log(found).count("began"),
            held=sum(claim.used + claim.granted for claim in claims),
        )

    def _name(self, name: str) -> str:
        return f"{name}-{self.tag}"

    def _begin(self, name: str, script: str, **fields: Any) -> Command:
        script = "echo began; " + script.format(workload=self.world.workload)
        return self.world.begin_launch(self._name(name), "sh", "-c", script, **fields)

    def _launch(self, name: str, script: str, **fields: Any) -> None:
        command = self.world.outcome(self._begin(name, script, **fields))
        assert command.container is not None
        self.made[name] = command.container
        self._done(command)

    def _says(self, name: str, words: str) -> None:
        self.world.until_says(self.made[name], words)

    def _done(self, command: Command) -> None:
        assert command.outcome == Command.Outcome.DONE, f"{command.kind} {command.container}: {command.message}"

    def _still(self) -> str:
        return f"something is left: {self.facts()}"


def wrong(facts: dict[str, Facts]) -> list[str]:
    """What is not as it has to be, in sentences."""
    found = []
    for name, (state, exit_codes, reason, events, began) in EXPECTED.items():
        fact = facts[name]
        if fact.state != state:
            found.append(f"{name} is {fact.state}, not {state}: {fact.reason}")
        if fact.exit_code not in exit_codes:
            found.append(f"{name} has exit code {fact.exit_code}, not one of {exit_codes}")
        if reason not in fact.reason:
            found.append(f"{name} ended because {fact.reason!r}, not {reason!r}")
        if fact.events != events:
            found.append(f"{name}: events {fact.events}, not {events}")
        if fact.began != began:
            found.append(f"{name}: its program was started {fact.began} times")
        if fact.held:
            found.append(f"{name} is charged {fact.held} bytes after its end")
    return found


_LIFE = {Kind.STARTED: 1, Kind.ENDED: 1}
_KILLED = {**_LIFE, Kind.KILLED: 1}
# state, exit codes, in the reason, what happened once, and how often the program was started
EXPECTED: dict[str, tuple[str, tuple[int | None, ...], str, dict[str, int], int]] = {
    "holder": ("killed", (137,), "Killed by", {**_KILLED, Kind.PAUSED: 1, Kind.UNPAUSED: 1}, 1),
    "waiter": ("killed", (137, 143), "Killed by", _KILLED, 1),
    "late": ("killed", (137, 143), "Its time of 1 s was over.", _KILLED, 1),
    "three": ("failed", (3,), "", _LIFE, 1),
    "broken": ("failed", (None,), "Cannot start", {}, 0),
    "large": ("failed", (None,), "", {}, 0),
}
