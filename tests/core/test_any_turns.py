"""Turns, whatever comes in whatever order: one at a time, never nobody, debts bounded, and nobody waits for nothing."""

from collections import Counter
from math import inf, nan

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.core.people.tree import Tree
from scheduler.core.turns import (
    Admitted,
    Barred,
    CardSeen,
    Changed,
    Charged,
    Computes,
    Go,
    Joined,
    Left,
    Mode,
    NotStopped,
    PeopleChanged,
    Rests,
    Rules,
    Started,
    Stopped,
    Ticked,
    Turns,
    Yields,
    decide,
    standing,
    wake,
)
from scheduler.core.turns.soundness import violations

pytestmark = pytest.mark.timeout(1800)  # many steps, on a machine that may be busy

CARDS = ("g", "h", "i")
NAMES = tuple("abcdef")
names = st.sampled_from(NAMES)
weights = st.sampled_from((1, 50, 100, 100, 1000))
limits = st.sampled_from((None, None, None, 1, 30, 100))
priorities = st.sampled_from((0, 0, 0, 5))
gpus = st.lists(st.sampled_from(CARDS), min_size=1, max_size=3, unique=True).map(tuple)
owners = st.sampled_from(("", "ada", "bob"))
trees = st.builds(
    Tree,
    st.dictionaries(owners, st.sampled_from(("lab", "gone"))),
    st.fixed_dictionaries({}, optional={"lab": st.sampled_from((0.5, 2.0))}),
    st.dictionaries(owners, st.sampled_from((0.25, 1.0, 3.0))),
)
parts = st.sampled_from((1.0, 1.0, 0.5, 0.05))


class Host(RuleBasedStateMachine):
    """Three cards, and a shell that answers what it is asked, sooner or later."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = Turns(Rules(cycle=1.0, longest_priority=5.0))
        self.asked: dict[str, type] = {}
        self.locked: set[str] = set()
        for card in CARDS:
            self.tell(CardSeen(0.0, card, Mode.TURNS))

    def tell(self, *events):
        self.turns, effects = decide(self.turns, *events)
        for effect in effects:
            assert effect.container not in self.asked, "asked twice"
            assert isinstance(effect, Go) == (effect.container in self.locked), "locked twice, or unlocked"
            self.asked[effect.container] = type(effect)

    def known(self):
        return sorted(self.turns.takers)

    @rule(name=names, its=gpus, weight=weights, limit=limits, priority=priorities, owner=owners, across=st.booleans())
    def join(self, name, its, weight, limit, priority, owner, across):
        self.tell(Joined(self.now, name, its, weight, limit, priority, owner, across))

    @rule(name=names, weight=weights, limit=limits, priority=priorities, across=st.booleans())
    def change(self, name, weight, limit, priority, across):
        self.tell(Changed(self.now, name, weight, limit, priority, across))

    @rule(tree=trees)
    def people_change(self, tree):
        self.tell(PeopleChanged(self.now, tree))

    @rule(owner=owners, card=st.sampled_from(CARDS), seconds=st.sampled_from((0.1, 1.0, 40.0)))
    def charge(self, owner, card, seconds):
        self.tell(Charged(self.now, owner, card, seconds))

    @rule(name=names)
    def leave(self, name):
        self.locked.discard(name)
        self.asked.pop(name, None)
        self.tell(Left(self.now, name))

    @rule(name=names, event=st.sampled_from((Barred, Admitted, Rests, Yields)))
    def is_notified(self, name, event):
        self.tell(event(self.now, name))

    @rule(name=names, its=st.just(()) | gpus, part=parts)
    def compute(self, name, its, part):
        self.tell(Computes(self.now, name, its, part))

    @rule(card=st.sampled_from(CARDS), mode=st.sampled_from(Mode))
    def switch(self, card, mode):
        self.tell(CardSeen(self.now, card, mode))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), late=st.sampled_from((0.0, 0.001, 0.05, 1.0)), can=st.sampled_from((True, True, True, False)))
    def answer(self, data, late, can):
        name = data.draw(st.sampled_from(sorted(self.asked)))
        self.now += late
        self.reply(name, can)

    def reply(self, name, can=True):
        if self.asked.pop(name) is Go:
            self.locked.discard(name)
            self.tell(Started(self.now, name))
        elif can:
            self.locked.add(name)
            self.tell(Stopped(self.now, name))
        else:
            self.tell(NotStopped(self.now, name))

    def reply_all(self):
        for _ in range(50):
            if not self.asked:
                return
            self.reply(min(self.asked))
        raise AssertionError(f"it goes on asking: {self.asked}")

    @rule(name=names, event=st.sampled_from((Stopped, Started, NotStopped)))
    def answer_twice(self, name, event):
        if name not in self.asked:
            before = self.turns
            self.tell(event(self.now, name))
            assert {each: t.phase for each, t in self.turns.takers.items()} == {
                each: t.phase for each, t in before.takers.items()
            } or self.asked

    @rule(seconds=st.sampled_from((0.001, 0.1, 0.5, 3.0, 1e4)))
    def time_passes(self, seconds):
        due = wake(self.turns)
        self.now += seconds
        if due is not None and due < self.now:
            self.tell(Ticked(max(due, self.turns.now)))
        self.tell(Ticked(self.now))

    @invariant()
    def nothing_is_wrong(self):
        assert violations(self.turns) == []

    @invariant()
    def what_was_had_is_no_more_than_there_was(self):
        for card in CARDS:
            its = [standing(self.turns, name, card) for name in self.turns.cards[card].members]
            assert sum(each.had for each in its) <= self.now + 1e-6
            assert sum(each.due for each in its) <= self.now + 1e-6

    def teardown(self):
        """Once all is answered and all compute, each of them has a turn in bounded time; barred, all are let go."""
        self.reply_all()
        for name in self.known():
            self.tell(Admitted(self.now, name), Changed(self.now, name), Computes(self.now, name))
        went: Counter[str] = Counter()
        end = self.now + 300.0  # debts are up to 30 s, and six of them share a card
        while self.now < end:
            self.reply_all()
            went.update(name for name in self.known() if standing(self.turns, name).has_turn)
            if len(went) == len(self.known()):
                break
            due = wake(self.turns)
            if due is None or due > end:
                break
            self.now = max(self.now + 1e-4, due)
            self.tell(Ticked(self.now))
            self.nothing_is_wrong()
        shared = {
            name
            for name, t in self.turns.takers.items()
            if not any(self.turns.cards[card].mode is Mode.TURNS for card in t.seats)
        }
        beside = {name for name, t in self.turns.takers.items() if t.beside}
        assert went.keys() | shared | beside == set(self.known())
        for name in self.known():
            self.tell(Barred(self.now, name))
        self.reply_all()
        assert not self.locked
        assert not self.asked


TestHost = Host.TestCase
TestHost.settings = settings(max_examples=settings().max_examples // 8)  # its end is long: see teardown

when = st.sampled_from((0.0, 0.1, 0.5, 1.0, 7.0, 1e5, -1.0, nan, inf, -inf))
container = st.sampled_from(("a", "b", "c", "nobody"))
figure = st.sampled_from((-5, 0, 1, 100, 10**9))
card = st.sampled_from(("g", "h", "nosuch"))
part = st.sampled_from((1.0, 0.0, -1.0, 7.0, nan, inf))
seconds = st.sampled_from((0.0, 0.2, -1.0, nan, inf))
several = st.lists(card, max_size=3).map(tuple)
anything = st.one_of(
    st.builds(lambda event, *what: event(*what), st.sampled_from(
        (Left, Barred, Admitted, Rests, Yields, Stopped, NotStopped, Started)), when, container),
    st.builds(Joined, when, container, several, figure, st.none() | figure, figure),
    st.builds(Changed, when, container, figure, st.none() | figure, figure),
    st.builds(Computes, when, container, several, part, seconds, seconds),
    st.builds(CardSeen, when, card, st.sampled_from(Mode)),
    st.builds(Ticked, when),
)  # fmt: skip


@given(st.lists(anything, max_size=40))
def test_events_that_make_no_sense_raise_nothing_and_break_nothing(stream):
    turns, _ = decide(Turns(), *(CardSeen(0.0, each, Mode.TURNS) for each in "gh"),
                      *(Joined(0.0, each, ("g", "h")[: 1 + (each == "c")]) for each in "abc"))  # fmt: skip
    for event in stream:
        turns, effects = decide(turns, event)
        assert violations(turns) == [], event
        assert len({effect.container for effect in effects}) == len(effects)


def test_who_joins_again_on_no_card_is_dealt_with_where_it_is():
    turns, _ = decide(
        Turns(), CardSeen(0.0, "g", Mode.TURNS), Joined(0.0, "c", ("g",), limit=1), Computes(0.0, "c"), Ticked(0.1)
    )
    turns, _ = decide(turns, Joined(0.1, "c", (), limit=None))
    assert violations(turns) == []
    assert turns.takers["c"].called
