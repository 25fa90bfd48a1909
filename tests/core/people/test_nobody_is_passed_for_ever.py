"""The bound between people (docs/deciding.md): how often others are elected before one who is due, whatever they do."""

from math import inf

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, rule

from scheduler.core.events import PeopleChanged
from scheduler.core.people import heads
from scheduler.core.people.ledger import Head
from scheduler.core.people.tree import Tree
from tests.core.people.lab import Lab
from tests.core.test_nobody_starves import GPUS
from tests.core.test_nobody_starves import Host as Anybody

# Three people, each with shares from 1/2 to 2: four times as many carry as far as a ratio against another.
SHARES = st.sampled_from((0.5, 1.0, 1.0, 2.0))
FAR = heads.CLAMP**2 * 4.0


class Elections(Anybody):
    """Beside each election: since when each person has been due on that card, or was last served there."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Head] = {}
        self.begins: dict[tuple[str, str], float] = {}  # GPU and person with a due call → due, or last served
        self.served: dict[tuple[str, str], float] = {}

    @rule(shares=st.tuples(SHARES, SHARES))
    def shares_change(self, shares):
        self.world.do(PeopleChanged(self.now, Tree(own=dict(zip(("u0", "u1"), shares, strict=True)))))

    @invariant()
    def who_is_elected_has_waited_a_part_of_what_others_have(self):
        state = self.world.state
        due: dict[tuple[str, str], float] = {}
        for request in state.waiting:
            container = state.containers[request.container]
            if (since := heads.due(state, request)) <= state.now:
                for gpu in container.quota:
                    key = gpu, container.owner
                    due[key] = min(since, due.get(key, since))
        for gpu in GPUS:
            old, new = self.known.get(gpu), state.people.heads.get(gpu)
            if old and new != old and old.container in state.containers:
                self.served[gpu, state.containers[old.container].owner] = state.now
            elsewhere = new and any(h == new for card, h in self.known.items() if card != gpu)
            if new and new != old and not elsewhere and len(GPUS) - len(state.spanning) >= len(GPUS):
                owner = state.containers[new.container].owner
                mine = state.now - max(due[gpu, owner] - heads.CREDIT, self.served.get((gpu, owner), -inf))
                for (card, other), since in due.items():
                    waited = state.now - max(since - heads.CREDIT, self.served.get((gpu, other), -inf))
                    assert card != gpu or waited <= FAR * max(mine, 1e-6) or not mine, (gpu, owner, other)
        self.known = dict(state.people.heads)


TestElections = Elections.TestCase
TestElections.settings = settings(max_examples=settings.default.max_examples // 4)


@pytest.mark.parametrize("people", [2, 3, 5])
def test_with_equal_ratios_each_other_person_passes_once(people):
    """A card for one container, and everybody always has another that waits and is due: they go round."""
    lab = Lab(100, holder=100)
    names = [f"p{number}" for number in range(people)]
    for name in names:
        for _ in range(4):
            lab.start(name, 100)
    lab.after(heads.PATIENCE)
    served, running = [], "holder"
    for _ in range(3 * people):
        lab.after(1)
        (running,) = lab.end(running)
        served.append(lab.state.containers[running].owner)
    rounds = [served[at : at + people] for at in range(0, len(served), people)]
    assert all(sorted(each) == names for each in rounds), served
