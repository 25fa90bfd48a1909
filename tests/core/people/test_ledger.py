"""What people have had and what was due to them: exact between events, kept over a restart, and nothing for nobody."""

from collections import Counter
from math import inf, log, nan

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, rule

from scheduler.core import safety
from scheduler.core.arbiter import handle
from scheduler.core.effects import Refused
from scheduler.core.events import Forgiven, GpuSeen, LedgerRestored, PeopleChanged, Ticked, UsageElsewhere
from scheduler.core.people.ledger import HALF_LIFE, Account, accounts, decayed
from scheduler.core.people.ratios import ratios
from scheduler.core.people.tree import Tree, mistake
from scheduler.core.state import State
from tests.core.people.lab import DAY, Lab
from tests.core.test_any_order_of_events import GPUS, Host

GROUPS = Tree({"u0": "a", "u1": "a", "u2": "b"}, {"a": 2.0, "b": 1.0})
TREES = (
    Tree(),
    GROUPS,
    Tree({"u0": "a", "u1": "a"}, {"a": 1.5}, {"u0": 3.0, "u2": 0.3}),
    Tree({"u0": "gone"}, {}, {"u1": 0.1}),
)


class Counted(Host):
    """Everything that can happen on a host, while the tree changes and days pass; beside it the plain sums."""

    def __init__(self) -> None:
        self.plain: dict[tuple[str, str], tuple[float, float]] = {}
        self.before: State | None = None
        super().__init__()

    @rule(tree=st.sampled_from(TREES))
    def change_tree(self, tree):
        self.world.do(PeopleChanged(self.now, tree))

    @rule(seconds=st.sampled_from((3600.0, DAY, 80 * DAY)))
    def long_time_passes(self, seconds):
        self.now += seconds
        self.world.do(Ticked(self.now))

    @invariant()
    def the_ledger_has_what_a_plain_sum_has(self):
        state, before = self.world.state, self.before or self.world.state
        self.before = state
        seconds = state.now - before.now
        for gpu in GPUS:
            for person, (had, due) in rates(before, gpu).items():
                account = decayed(Account(*self.plain.get((gpu, person), (0.0, 0.0))), seconds)
                long = HALF_LIFE / log(2) * (1 - 2 ** (-seconds / HALF_LIFE))
                self.plain[gpu, person] = account.had + had * long, account.due + due * long
        found = accounts(state.people, state.now)
        for (gpu, person), plain in self.plain.items():
            assert found.get(gpu, {}).get(person, (0, 0)) == pytest.approx(plain, rel=1e-6, abs=1e-3)
        for its in found.values():
            had, due = (sum(each) for each in zip(*its.values(), strict=True)) if its else (0, 0)
            assert had == pytest.approx(due, rel=1e-6, abs=1e-3)


def rates(state: State, gpu: str) -> dict[str, tuple[float, float]]:
    """What each of the people gains a second on a card. Of those who were ever there: nothing, where nobody waits."""
    held: Counter[str] = Counter()
    for container in state.containers.values():
        held[container.owner] += safety.held(container, gpu)
    waits = {
        container.owner
        for request in state.waiting
        if request.gpu == gpu and not safety.put_by(container := state.containers[request.container])
    }
    parts = state.people.tree.divide(waits | {person for person in held if held[person]})
    together = sum(held.values()) if waits else 0
    everybody = {f"u{number}" for number in range(3)}
    return {who: (held[who] * bool(waits), together * parts.get(who, 0.0)) for who in everybody}


TestCounted = Counted.TestCase
TestCounted.settings = settings(max_examples=settings.default.max_examples // 5)


def test_what_is_held_is_due_in_equal_parts_while_somebody_waits():
    lab = Lab(100, ann=60, bob=40)
    lab.after(100)
    assert lab.accounts() == {}, "nobody waits"
    lab.start("cat", 50)
    lab.after(30)
    assert lab.accounts() == {
        "ann": pytest.approx((1800, 1000), rel=1e-3),
        "bob": pytest.approx((1200, 1000), rel=1e-3),
        "cat": pytest.approx((0, 1000), rel=1e-3),
    }
    assert ratios(lab.state, lab.now).people["ann"] == pytest.approx((1800 + 90_000) / (1000 + 90_000), rel=1e-3)
    lab.end("ann")
    before = lab.accounts()
    lab.after(2 * DAY)
    assert lab.accounts()["ann"] == pytest.approx([each / 2 for each in before["ann"]])


def test_who_waits_paused_costs_nobody_anything():
    lab = Lab(100, ann=100)
    lab.start("bob", 50)
    lab.pause("bob")
    lab.after(100)
    assert lab.accounts() == {}
    lab.resume("bob")
    lab.after(100)
    assert lab.accounts()["bob"] == pytest.approx((0, 5000), rel=1e-3)


def test_groups_divide_before_people_do():
    lab = Lab(90, u0=30, u1=30, u2=30)
    lab.do(PeopleChanged(lab.now, GROUPS))
    lab.start("u2", 40)
    lab.after(10)
    assert [lab.accounts()[f"u{i}"].due for i in range(3)] == pytest.approx([300, 300, 300], rel=1e-3)
    lab.end("u1")
    lab.after(10)
    assert lab.accounts()["u0"].due == pytest.approx(300 + 400, rel=1e-3)


def test_a_restart_loses_only_what_was_not_kept():
    lab = Lab(100, ann=60, bob=40)
    lab.start("cat", 50)
    lab.after(DAY)
    kept = accounts(lab.state.people, lab.now)
    state, _ = handle(State(), GpuSeen(5.0, "g", 100), LedgerRestored(5.0, kept, age=DAY))
    found = accounts(state.people, 5.0)["g"]
    assert found == {name: pytest.approx(decayed(each, DAY)) for name, each in kept["g"].items()}
    state, _ = handle(state, LedgerRestored(5.0, {"g": {"ann": Account(1, 1)}}, age=-DAY))
    assert accounts(state.people, 5.0)["g"]["ann"].had == pytest.approx(found["ann"].had + 1), "a clock was set back"


def test_hosts_are_summed_and_what_was_said_last_holds():
    lab = Lab(100, ann=60, bob=40)
    for had in (900.0, 500.0):
        lab.do(UsageElsewhere(lab.now, {"ann": Account(had, 100.0)}, 100))
    found = ratios(lab.state, lab.now)
    assert found.accounts["ann"] == Account(500.0, 100.0)
    assert found.people["ann"] == pytest.approx((500 + 900 * 200) / (100 + 900 * 200))
    lab.do(Forgiven(lab.now, "ann"))
    assert "ann" not in ratios(lab.state, lab.now).accounts


def test_forgiving_ends_what_was_had_and_what_was_due():
    lab = Lab(100, ann=60, bob=40)
    lab.start("cat", 50)
    lab.after(DAY)
    lab.do(Forgiven(lab.now, "ann"))
    assert lab.accounts().keys() == {"bob", "cat"}
    lab.after(10)
    assert lab.accounts()["ann"] == pytest.approx((600, 1000 / 3), rel=1e-3)


@pytest.mark.parametrize(
    "event",
    [
        LedgerRestored(0, {"g": {"ann": Account(nan, 1), "bob": Account(-1, 1)}, "none": {"ann": Account(1, 1)}}),
        UsageElsewhere(0, {"ann": Account(inf, 1)}, -5),
        Forgiven(0, "nobody"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_figures_that_make_no_sense_are_left_out(event):
    state, effects = handle(State(), GpuSeen(0, "g", 10), event)
    assert not ratios(state, 0).accounts
    assert not effects


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (Tree(shares={"a": 0.0}), "Group 'a' cannot have 0 shares: they are from 0.001 to 100000."),
        (Tree(own={"ann": nan}), "Person 'ann' cannot have nan shares: they are from 0.001 to 100000."),
        (Tree(shares={"": 1.0}), "A share group needs a name."),
    ],
    ids=str,
)
def test_shares_that_make_no_sense_are_refused_and_nothing_changes(tree, says):
    assert mistake(tree) == says
    state, (effect,) = handle(State(), PeopleChanged(0, tree))
    assert isinstance(effect, Refused)
    assert effect.explanation == says
    assert state.people.tree == Tree()


def test_ways_part_at_the_root_or_in_a_group():
    assert [node.name for node in GROUPS.parted("u0", "u1")] == ["u0", "u1"]
    assert [node.name for node in GROUPS.parted("u0", "u2")] == ["a", "b"]
    assert [node.name for node in GROUPS.parted("u1", "new")] == ["a", "new"]
    assert GROUPS.divide(["u0", "u1", "u2", "new"]) == {"u0": 0.25, "u1": 0.25, "u2": 0.25, "new": 0.25}
