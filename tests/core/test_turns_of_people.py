"""The turns of people: a card is divided by their tree, and of one person's containers by weight."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from benchmarks.simulation.turns import play, shares
from benchmarks.simulation.turns_mixes import PEOPLE, of, people
from scheduler.core.people.tree import Tree
from scheduler.core.turns import (
    CardSeen,
    Changed,
    Charged,
    Computes,
    Joined,
    Left,
    Mode,
    PeopleChanged,
    Started,
    Stop,
    Stopped,
    Ticked,
    Turns,
    debt,
    decide,
    wake,
)
from scheduler.core.turns.books import ROOT
from scheduler.core.turns.dealing import Deal
from scheduler.core.turns.shares import divide_by_person

LAB = Tree(groups={"ann": "vision", "bea": "vision", "cem": "speech"}, shares={"vision": 2.0, "speech": 1.0})
CARDS = [
    (Tree(), {"a": ("ada", 100), "b": ("ada", 300), "c": ("bob", 1)}, {}, (0.125, 0.375, 0.5)),
    (Tree(own={"bob": 3.0}), {"a": ("ada", 100), "b": ("bob", 100)}, {}, (0.25, 0.75)),
    (LAB, {"a": ("ann", 1), "b": ("bea", 9), "c": ("cem", 5), "d": ("dan", 1)}, {}, (0.25, 0.25, 0.25, 0.25)),
    (Tree(), {"a": ("ada", 100), "b": ("ada", 100), "c": ("bob", 100)}, {"a": 0.1}, (0.1, 0.4, 0.5)),
    (Tree(), {"a": ("ada", 100), "b": ("ada", 100), "c": ("bob", 100)}, {"a": 0.1, "b": 0.2}, (0.1, 0.2, 0.7)),
    (LAB, {"a": ("ann", 1), "b": ("bea", 1), "c": ("cem", 1)}, {"a": 0.1}, (0.1, 2 / 3 - 0.1, 1 / 3)),
    (Tree(), {"a": ("ada", 1), "b": ("bob", 1)}, {"a": 0.2, "b": 0.3}, (0.2, 0.3)),
]  # fmt: skip


@pytest.mark.parametrize(("tree", "its", "most", "due"), CARDS)
def test_a_card_is_divided_by_group_person_and_weight_and_what_a_limit_leaves_stays_near(tree, its, most, due):
    assert tuple(divide_by_person(tree, its, most).values()) == pytest.approx(due)


@pytest.mark.parametrize(
    ("mix", "due", "within"),
    [
        ("20 of one, 1 of another", {"ada": 1 / 2, "bob": 1 / 2}, 0.03),
        ("10 trainings of one, 1 of another", {"ada": 1 / 2, "bob": 1 / 2}, 0.03),
        ("groups 2:1, of two and five", {"ada": 1 / 3, "bob": 1 / 3, "v": 1 / 15}, 0.02),
    ],
)
def test_each_person_has_a_share_whatever_the_number_of_containers(mix, due, within):
    tree, programs = PEOPLE[mix]
    played = play(programs, 40.0, tree=tree)
    had = people(programs, shares(played, 10.0))
    assert {person: had[person] for person in due} == pytest.approx(due, abs=within)
    by_container = play([replace(each, owner="") for each in programs], 40.0)
    assert sum(played.done.values()) >= sum(by_container.done.values()) - 0.2, "no less work is done"


@pytest.mark.parametrize("lives", [0.2, 1.0])
@pytest.mark.parametrize("drain", [0.005, 0.02])
def test_churn_of_short_containers_wins_nothing(drain, lives):
    programs = of("ada", 8, drain, lives) + of("bob", 1, drain) + of("cem", 1, drain)
    had = people(programs, shares(play(programs, 40.0), 10.0))
    assert had["ada"] <= 1.03 / 3
    assert min(had["bob"], had["cem"]) >= 0.97 / 3


class Card:
    """One card, on which these compute: container → owner. The first has the turn, all others are stopped."""

    def __init__(self, **owners):
        self.turns, self.at = Turns(), 0.0
        self.tell(CardSeen, "g", Mode.TURNS)
        for name, owner in owners.items():
            self.tell(Joined, name, ("g",), 100, None, 0, owner)
        for name in owners:
            for effect in self.tell(Computes, name):
                self.tell(Stopped, effect.container)

    def tell(self, what, *args):
        self.turns, effects = decide(self.turns, what(self.at, *args))
        return effects

    def credit(self, owner):
        return self.turns.cards["g"].purses[owner].credit

    def play(self, seconds):
        """All is answered at once. Who had the turn, and for how long."""
        end, had = self.at + seconds, {}
        while self.at < end:
            due = wake(self.turns)
            due = end if due is None else min(due, end)
            going = next((name for name, taker in self.turns.takers.items() if taker.called), None)
            had[going] = had.get(going, 0.0) + due - self.at
            self.at = due
            effects = self.tell(Ticked)
            while effects:
                effect = effects.pop()
                effects += self.tell(Stopped if isinstance(effect, Stop) else Started, effect.container)
        return had


def test_what_an_ended_container_owes_its_person_owes_and_what_is_seen_of_it_later_too():
    card = Card(a="ada", b="bob")
    card.tell(Computes, "a", ("g",), 1.0, 0.0, 0.0, 3.0)
    card.tell(Left, "a")
    before = card.credit("ada")
    card.tell(Charged, "ada", "g", 1.0)
    assert card.credit("ada") == pytest.approx(before - 1.0)
    owes = debt(card.turns, "ada", ["g"], card.at)
    assert owes == pytest.approx((-card.credit("ada") - 0.5) / 0.5), "no more than a quantum, by resting"
    assert debt(card.turns, "ada", ["g"], card.at + owes) == pytest.approx(0.0, abs=1e-6)
    assert debt(card.turns, "bob", ["g", "other"], card.at) == debt(card.turns, "cem", ["g"], card.at) == 0.0
    card.tell(Joined, "new", ("g",), 100, None, 0, "ada")
    card.tell(Computes, "new")
    assert card.credit("ada") == pytest.approx(before - 1.0), "a new container pays for the one before it"
    card.tell(Left, "b")
    assert debt(card.turns, "ada", ["g"], card.at) == 0.0, "there is nobody to whom it is owed"


@pytest.mark.parametrize(
    ("across", "due"), [(False, {"a1": 1 / 2, "a2": 0.0, "b": 1 / 2}), (True, {"a1": 1.0, "a2": 0.0, "b": 0.0})]
)
def test_a_priority_orders_within_a_person_and_against_others_if_an_operator_gave_it(across, due):
    card = Card(a1="ada", a2="ada", b="bob")
    card.tell(Changed, "a1", 100, None, 5, across)
    card.play(2.0)
    had = card.play(20.0)
    assert {name: had.get(name, 0.0) / sum(had.values()) for name in due} == pytest.approx(due, abs=0.06)


owners = st.lists(st.sampled_from(("ada", "bob", "cem")), min_size=2, max_size=9)
trees = st.builds(
    Tree, st.just({"ada": "lab", "bob": "lab"}), st.fixed_dictionaries({}, optional={"lab": st.just(2.0)}),
    st.dictionaries(st.sampled_from(("ada", "cem")), st.sampled_from((0.5, 3.0))),
)  # fmt: skip


@given(owners, trees)
def test_a_round_gives_each_person_their_share_of_it_however_many_their_containers_are(owners, tree):
    card = Card(**{f"c{place}": owner for place, owner in enumerate(owners)})
    card.tell(PeopleChanged, tree)
    deal = Deal(card.turns, 0.0)
    its = deal.queues("g")
    assert {person: deal.quantum("g", ROOT, person) / deal.round_length("g", ROOT) for person in its} == pytest.approx(
        tree.divide(its)
    )


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from((0.02, 0.3, 1.5))), max_size=80))
def test_a_purse_is_bounded_however_many_containers_come_overrun_and_end(steps):
    """One lives at a time. It comes only while no more than a quantum (0.5 s) is owed, overruns, and ends at once."""
    card = Card(z="bob")
    for name, overrun in steps:
        if debt(card.turns, "ada", ["g"], card.at) == 0.0:
            card.tell(Joined, name, ("g",), 100, None, 0, "ada")
            for effect in card.tell(Computes, name, ("g",), 1.0, 0.0, 0.0, overrun):
                card.tell(Stopped, effect.container)
            card.tell(Left, name)
        assert -0.5 - 1.5 - 1e-6 <= card.credit("ada") <= 1.5 * 0.5
        card.play(0.1)
