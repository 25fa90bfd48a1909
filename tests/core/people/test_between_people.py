"""Who goes first between people: heads, the cap, the mode `share`, and what is said about it."""

from itertools import pairwise

import pytest

from scheduler.core import policies
from scheduler.core.effects import Preempt
from scheduler.core.events import PeopleChanged, PreemptionChanged, PriorityChanged, QuotaChanged, UsageElsewhere
from scheduler.core.forecast import forecast
from scheduler.core.people import heads
from scheduler.core.people.heads import PATIENCE
from scheduler.core.people.ledger import Account
from scheduler.core.people.standing import place, say, standings
from scheduler.core.people.tree import Tree
from scheduler.core.reasons import why
from scheduler.core.state import Mode, Preemption
from tests.core.people.lab import Lab

LONG, EQUAL = PATIENCE + 1, Tree()


def usage(lab: Lab, **had: float) -> None:
    """What each had elsewhere, in hours of the card, of a due of one hour."""
    lab.do(UsageElsewhere(lab.now, {who: Account(3600e2 * each, 3600e2) for who, each in had.items()}, 0))


def head(lab: Lab) -> str:
    found = heads.head(lab.state, "g")
    return found.container if found else ""


def queue(usage_: dict[str, float], tree: Tree = EQUAL) -> Lab:
    """A full card, and people that wait for all of it, a second apart, until all are due."""
    lab = Lab(100, holder=100)
    lab.do(PeopleChanged(0.0, tree))
    usage(lab, **usage_)
    for person in ("ann", "bob", "cat"):
        lab.after(1)
        lab.start(person, 100)
    lab.now += 99
    lab.after(LONG)
    return lab


@pytest.mark.parametrize(
    ("had", "tree", "first"),
    [
        ({}, Tree(), "ann"),  # who was due first
        ({"ann": 1.5, "bob": 1.4, "cat": 0.5}, Tree(), "cat"),
        ({"ann": 1.0, "bob": 0.8}, Tree(own={"ann": 8.0}), "ann"),
        ({"ann": 0.1, "bob": 4.0}, Tree({"ann": "a", "bob": "a"}, {"a": 1.0}), "cat"),  # the group, then the person
        ({"ann": 0.1, "bob": 4.0, "cat": 5.0}, Tree({"ann": "a", "bob": "a"}, {"a": 1.0}), "ann"),
    ],
    ids=str,
)
def test_the_head_is_whose_wait_counts_most(had, tree, first):
    assert head(queue(had, tree)) == first


def test_a_head_stays_until_it_is_served_then_those_who_had_a_turn_go_last():
    lab = queue({"ann": 1.5, "cat": 0.5})
    usage(lab, ann=0.1, bob=0.1, cat=8.0)
    lab.start("cat", 100)
    lab.after(LONG)
    assert head(lab) == "cat", "elected, though others would be by now"
    usage(lab, ann=1.0, bob=1.0, cat=1.0)
    served = [lab.end("holder")]
    while served[-1]:
        lab.after(60)
        served.append(lab.end(served[-1][0]))
    assert [each[0] for each in served if each] == ["cat", "ann", "bob", "cat5"]


def test_a_head_that_holds_more_than_its_share_is_replaced_once():
    lab = Lab(100, ann=60, bob=40)
    lab.start("ann", 50)
    lab.after(LONG)
    assert head(lab) == "ann3", "nobody else is due"
    for person in ("cat", "dan"):
        lab.start(person, 30)
        lab.after(LONG)
        usage(lab, dan=0.1)
        assert head(lab) == "cat", "she holds nothing; who replaced somebody stays, though dan has had less"
    lab.end("bob")
    assert "cat" not in lab.waiting()
    lab.after(1)
    assert head(lab) == "dan"


@pytest.mark.parametrize(
    ("ann", "cat", "had"),
    [(55, 34, {}), (30, 0, {}), (60, 0, {"cat": 4.0})],
    ids=["cat has her share", "ann has hers", "ann would be elected now"],
)
def test_a_head_is_replaced_only_by_one_below_its_share_that_would_be_elected(ann, cat, had):
    lab = Lab(100, ann=ann, bob=100 - ann - cat, **({"cat": cat} if cat else {}))
    lab.start("ann", 70, name="waits")
    lab.after(LONG)
    lab.start("cat", 50, name="comes")
    usage(lab, **had)
    lab.after(LONG)
    assert head(lab) == "waits"


def test_whose_side_would_pass_its_share_does_not_pass_a_side_with_less():
    lab = Lab(100, ann=40, bob=40)
    lab.start("cat", 70)
    lab.after(LONG)
    more = lab.start("ann", 10)
    assert more in lab.waiting(), "33 are ann's, and cat has none"
    new = lab.start("dan", 10)
    assert new not in lab.waiting(), "who holds nothing starts: it fits beside cat"
    assert why(lab.state, lab.state.waiting[-1], tried=False) == (
        "Needs 10 bytes of 10 bytes free. 'ann' holds 40 bytes and would hold 50 bytes, above its share of 25 bytes. "
        "'cat' holds 0 bytes, less than its share, and has waited longer than 10 minutes."
    )
    lab.end("cat")
    assert more not in lab.waiting(), "nobody is due any more"


def test_a_cap_of_sides_lets_a_group_use_what_is_its():
    tree = Tree({"ann": "a", "bob": "a"}, {"a": 3.0})
    lab = Lab(100, ann=40)
    lab.do(PeopleChanged(0.0, tree))
    lab.start("cat", 10)
    lab.start("cat", 80)  # the head
    lab.after(LONG)
    assert lab.start("ann", 10) not in lab.waiting(), "the group has 75"
    lab = Lab(100, ann=30, bob=2)
    lab.do(PeopleChanged(0.0, tree))
    lab.start("bob", 70)
    lab.after(LONG)
    assert lab.start("ann", 25) in lab.waiting(), "in the group each has 50: she would have 55, and bob waits with 2"


def test_a_priority_counts_between_people_only_if_an_operator_gave_it():
    lab = Lab(100, holder=100)
    lab.start("ann", 60)
    lab.start("bob", 60, priority=50)
    assert lab.end("holder") == ["ann"], "she has waited as long"
    lab = Lab(100, holder=100)
    lab.start("ann", 60)
    lab.start("bob", 60, priority=50, across=True)
    assert lab.end("holder") == ["bob"]
    lab = Lab(100, holder=100)
    lab.start("ann", 60)
    low, high = (lab.start("bob", 50, priority=priority) for priority in (0, 50))
    lab.do(PriorityChanged(lab.now, low, -50))
    assert [each for each in lab.end("holder") if each != "ann"] in ([high], [high, low])


# ---- giving way --------------------------------------------------------------------------------------------------

SHARE = Preemption(Mode.SHARE, idle=1e9, rotate=100.0, out=1e9, back=1e9, least=0.01)


@pytest.mark.parametrize(
    ("held", "waits", "asks", "goes"),
    [
        ({"ann": (30, 30, 30), "bob": (10,)}, "cat", 30, "ann"),  # 90 - 30 of 33: she keeps her share
        ({"ann": (30, 30, 30), "bob": (10,)}, "bob", 30, "ann"),
        ({"ann": (30, 30, 30), "bob": (10,)}, "ann", 30, None),  # her own
        ({"ann": (50,), "bob": (50,)}, "cat", 30, None),  # without it they would be below their shares
        ({"ann": (50, 10, 10), "bob": (30,)}, "cat", 20, "ann4"),  # 50 stay; both of the small ones are needed
        ({"ann": (40, 15), "bob": (30, 15)}, "cat", 15, "ann2"),  # who is furthest above
        ({"ann": (50, 20), "bob": (30,)}, "cat", 20, "ann2"),  # by which she keeps her share
        ({"ann": (50, 20), "bob": (30,)}, "cat", 30, "ann"),  # 20 of 33 are left, so she lacks 13; cat gains 30
        ({"ann": (70,), "bob": (30,)}, "cat", 70, None),  # she would lack 33, and cat gain as much
        ({"ann": (30,), "bob": (30, 30)}, "ann", 30, None),  # bob would lack 3, and ann gain 3
    ],
    ids=str,
)
def test_a_computing_holder_goes_only_if_sides_then_lack_less_of_their_shares(held, waits, asks, goes):
    lab = Lab(100)
    lab.do(PreemptionChanged(0.0, SHARE))
    for person, sizes in held.items():
        for size in sizes:
            lab.start(person, size)
            lab.now += 1
    lab.start(waits, asks)
    lab.now += 200
    preempted = [effect for effect in lab.do(PreemptionChanged(lab.now, SHARE)) if isinstance(effect, Preempt)]
    if goes is None:
        assert not preempted
    else:
        (effect,) = preempted
        assert effect.why is Mode.SHARE
        assert lab.state.containers[effect.container].owner == goes.rstrip("0123456789")
        assert lab.state.containers[effect.whom].owner == waits


@pytest.mark.parametrize(
    ("held", "goes"),
    [
        ({"ann": (9, 6), "cat": (11,)}, None),  # the group would lack 1, whatever bob gains
        ({"ann": (10, 6), "cat": (10,)}, "ann2"),  # without 6 it has its share, without 10 it would lack 4
        ({"ann": (11,), "cat": (11, 3)}, None),  # cat would lack 2, and the group gain 2; what bob gains is no matter
        ({"ann": (11,), "cat": (12, 3)}, "cat3"),  # cat would lack 1, and the group gain 2
    ],
    ids=str,
)
def test_what_members_of_a_group_gain_may_cost_no_group_anything(held, goes):
    lab = Lab(26)
    lab.do(PreemptionChanged(0.0, SHARE))
    lab.do(PeopleChanged(0.0, Tree({"ann": "g", "bob": "g"}, {"g": 1.0})))
    for person, sizes in held.items():
        for size in sizes:
            lab.start(person, size)
            lab.now += 1
    lab.start("bob", 3)
    lab.now += 200
    preempted = [each.container for each in lab.do(PreemptionChanged(lab.now, SHARE)) if isinstance(each, Preempt)]
    assert preempted == ([goes] if goes else [])


@pytest.mark.parametrize(("asks", "goes"), [(2, []), (10, ["ann2"])])
def test_who_holds_a_part_gains_what_it_asks_for_and_not_all_of_its_quota(asks, goes):
    lab = Lab(100)
    lab.do(PreemptionChanged(0.0, SHARE))
    lab.start("ann", 25, preemptible=False)
    lab.start("ann", 44)
    lab.start("bob", 30)
    lab.start("cat", 1)
    lab.do(QuotaChanged(lab.now, "cat", {"g": 30}))
    lab.world.need(lab.count, 2, "g", asks, lab.now)
    lab.now += 200
    preempted = [each.container for each in lab.do(PreemptionChanged(lab.now, SHARE)) if isinstance(each, Preempt)]
    assert preempted == goes, "without 44 of 69 ann lacks 8 of 33"


def test_in_the_mode_idle_no_computing_holder_goes():
    lab = Lab(100, ann=90, bob=10)
    lab.start("cat", 30)
    lab.now += 1e5
    idle = Preemption(Mode.IDLE, idle=1e9, rotate=100.0)
    assert not [each for each in lab.do(PreemptionChanged(lab.now, idle)) if isinstance(each, Preempt)]


# ---- what is said ------------------------------------------------------------------------------------------------


def test_the_place_of_a_person():
    lab = queue({"ann": 1.5, "bob": 1.2, "cat": 0.5})
    assert place(lab.state, "dan", ["g"]) == ({"g": 0}, ("cat", "bob", "ann"), 0)
    assert say(place(lab.state, "dan", ["g"])) == (
        "You hold nothing there. 3 people are before you; your job is next after them."
    )
    bob = place(lab.state, "bob", ["g"])
    assert say(bob) == "You hold nothing there. cat is before you; your job is next after that person."
    assert say(place(lab.state, "cat", ["g"])) == "You hold nothing there. Nobody else is before you."
    assert forecast(lab.state, {"g": 10}, person="bob").place == bob
    assert all(one != two for one, two in pairwise(bob.before))


def test_the_reason_names_the_number_that_decides():
    lab = Lab(100, holder=50)
    usage(lab, ann=0.5, bob=2.0)
    lab.start("ann", 90)
    lab.start("bob", 40)
    lab.end("bob")
    lab.after(LONG)
    lab.start("bob", 45)
    last = lab.state.waiting[-1]
    said = why(lab.state, last, tried=last in policies.order(lab.state, "g"))
    assert said.startswith("Needs 45 bytes of 50 bytes free. 'ann' goes first: it has had 0.")
    assert "of its fair share, 'bob' 1." in said


def test_standings_name_people_and_groups():
    lab = queue({"ann": 2.0, "bob": 1.0}, Tree({"ann": "a", "holder": "a"}, {"a": 1.0}))
    found = standings(lab.state, lab.now)
    assert found.people["ann"].ratio > 1 > found.people["cat"].ratio
    assert found.groups["a"].held == {"g": 100}
    assert found.people["holder"].share == {"g": pytest.approx(100 / 6)}
    assert found.people["bob"].waits == 1
