"""What a play is made of (see plays.py), and the facts that must come out of it.

The facts are the same whenever, and however often, the scheduler is killed while it plays: that is the whole promise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.faults.world import GIB, World, Wrong
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


# state, exit codes, in the reason, what happened once, and how often the program was started; any one of several
Fate = tuple[str, tuple[int | None, ...], str, dict[str, int], int]


@dataclass
class Scene:
    """`expected`: what becomes of each container. `gpus`: the cards that there are."""

    expected: ClassVar[dict[str, tuple[Fate, ...]]]
    gpus: ClassVar[str] = "sim:1x5GiB"
    world: World
    made: dict[str, Container] = field(default_factory=dict)

    def prepare(self) -> None:
        """What is to be there before the first scheduler starts."""

    def play(self) -> None:
        """Raises Wrong if something that must come about does not."""
        raise NotImplementedError

    def wrong(self) -> list[str]:
        """What is not as it has to be, in sentences."""
        facts = self.facts()
        return [said for name, fates in self.expected.items() for said in _wrong(name, facts[name], fates)]

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

    def _begin(self, name: str, script: str, **fields: Any) -> Command:
        script = "echo began; " + script.format(workload=self.world.workload)
        fields = {"gpu_memory": GIB // 8, "give_way": False, **fields}
        return self.world.begin_launch(name, "sh", "-c", script, **fields)

    def _launch(self, name: str, script: str, **fields: Any) -> None:
        self._launched({name: self._begin(name, script, **fields)})

    def _launched(self, begun: dict[str, Command]) -> None:
        """Waits for the outcomes."""
        for name, command in begun.items():
            self.made[name] = self.world.outcome(command).container  # type: ignore[assignment]

    def _says(self, name: str, words: str) -> None:
        self.world.until_says(self.made[name], words)

    def _done(self, command: Command) -> None:
        assert command.outcome == Command.Outcome.DONE, f"{command.kind} {command.container}: {command.message}"

    def _refused(self, command: Command) -> None:
        assert command.outcome == Command.Outcome.REFUSED, f"{command.kind} {command.container} was not refused"

    def _removed(self, *names: str) -> None:
        """Has these removed, or all if none is named; nothing of anybody is left then."""
        for name in names or tuple(self.made):
            self._done(self.world.do("remove", self.made[name]))
        self._all_over()

    def _all_over(self) -> None:
        def over() -> bool:
            return all(facts.removed and not facts.held for facts in self.facts().values())

        try:
            self.world.until(over, "")
        except Wrong:
            raise Wrong(f"something is left: {self.facts()}") from None


def _wrong(name: str, fact: Facts, fates: tuple[Fate, ...]) -> Iterator[str]:
    if fact.held:
        yield f"{name} is charged {fact.held} bytes after its end"
    for state, exit_codes, reason, events, began in fates:
        is_so = (fact.state, fact.events, fact.began) == (state, events, began)
        if is_so and fact.exit_code in exit_codes and reason in fact.reason:
            return
    yield f"{name} was to become one of {fates}, and is {fact}"
