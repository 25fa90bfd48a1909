"""Which of several nodes a launch goes to: what no policy may ever do, and what each of them is for."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web.errors import Problem
from web.services.placement.policies import Card, Holder, Policy, Site, Wish, choose_cards, choose_node, fits
from web.sizes import format_size
from web.spec import constraints

GIB = 1 << 30
every_policy = pytest.mark.parametrize("policy", Policy)
sizes = st.integers(0, 24).map(lambda gib: gib * GIB)
holders = st.builds(
    Holder, st.sampled_from(["train", "notebook", "eval"]), sizes, st.integers(0, 9999).map(float), st.booleans()
)
labels = st.dictionaries(st.sampled_from(["disk", "rack"]), st.sampled_from(["ssd", "SSD", "tape"]))
asks = st.sampled_from(
    ["node==a", "node!=a", "node.labels.disk==ssd", "node.labels.disk!=ssd", "node.labels.rack==tape"]
)


@st.composite
def cards(draw: st.DrawFn, number: int) -> Card:
    most = draw(sizes)
    free = draw(st.integers(-4, 24)) * GIB
    capacity, promised = min(most, draw(sizes)), draw(sizes)
    return Card(f"GPU-{number}", capacity, most, promised, free, tuple(draw(st.lists(holders, max_size=3))))


@st.composite
def clusters(draw: st.DrawFn) -> list[Site]:
    names = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6))
    found = []
    for place, name in enumerate(names):
        there = tuple(draw(cards(10 * place + number)) for number in range(draw(st.integers(0, 3))))
        found.append(Site(name, draw(st.booleans()), there, draw(labels), draw(sizes)))
    return found


wishes = st.builds(
    Wish, st.integers(1, 24).map(lambda gib: gib * GIB), st.integers(1, 3), st.lists(asks, max_size=2).map(tuple)
)


@given(st.sampled_from(Policy), clusters(), wishes)
def test_never_a_node_that_is_drained_away_too_small_or_not_as_asked(policy, sites, wish) -> None:
    chosen = choose_node(policy, sites, wish)
    able = [
        site.name
        for site in sites
        if site.takes
        and sum(card.most >= wish.quota for card in site.cards) >= wish.count
        and all(constraints.parse(ask).holds(site.name, site.labels) for ask in wish.constraints)
    ]
    assert (chosen is None) == (able == [])
    assert chosen is None or chosen.node in able


@pytest.mark.parametrize(("count", "says"), [(1, "than it can"), (2, "than all 2 GPUs can")])
def test_fewer_cards_than_asked_for_that_could_ever_give_it_is_a_problem_with_the_figures(count, says) -> None:
    cards = [Card("GPU-0", 8 * GIB, (7 + count - 1) * GIB), Card("GPU-1", 4 * GIB, 4 * GIB)]
    with pytest.raises(Problem, match=rf"^8 GiB is more {says} ever give: the most is {6 + count} GiB"):
        choose_cards(cards, {}, 8 * GIB, count)


@given(st.sampled_from(Policy), clusters(), wishes, st.randoms())
def test_the_order_in_which_nodes_are_listed_makes_no_difference(policy, sites, wish, chance: random.Random) -> None:
    shuffled = sites[:]
    chance.shuffle(shuffled)
    assert choose_node(policy, sites, wish) == choose_node(policy, shuffled, wish)


@given(st.sampled_from(Policy), clusters(), wishes)
def test_the_reason_names_both_nodes_and_a_figure_and_is_empty_without_a_choice(policy, sites, wish) -> None:
    chosen = choose_node(policy, sites, wish)
    able = [site.name for site in sites if fits(site, wish)]
    if chosen is None or len(able) == 1:
        assert chosen is None or chosen.reason == ""
        return
    assert f"{chosen.node} " in chosen.reason
    assert any(f"next is {name}" in chosen.reason or "no other has room" in chosen.reason for name in able)
    assert "GiB" in chosen.reason or "bytes" in chosen.reason


@given(clusters(), wishes)
def test_spread_takes_the_node_with_the_most_room(sites, wish) -> None:
    chosen = choose_node(Policy.SPREAD, sites, wish)
    alone = [site for site in sites if chosen and site.name == chosen.node]
    for other in sites:
        if chosen and other.name != chosen.node and fits(other, wish):
            assert choose_node(Policy.SPREAD, [*alone, other], wish).node == chosen.node


def site(name: str, promised: int, *holders: Holder, free: int | None = None, size: int = 16, **fields) -> Site:
    there = size - promised if free is None else free
    card = Card(f"GPU-{name}", size * GIB, size * GIB, promised * GIB, there * GIB, holders)
    return Site(name, **{"takes": True, "cards": (card,), **fields})


@every_policy
def test_of_equals_the_first_by_name(policy) -> None:
    assert choose_node(policy, [site("c", 4), site("b", 4), site("a", 4)], Wish(GIB)).node == "a"


def test_spread_fills_all_nodes_evenly_and_says_so() -> None:
    chosen = choose_node(Policy.SPREAD, [site("a", 12), site("b", 4), site("c", 13)], Wish(2 * GIB))
    assert (chosen.node, chosen.reason) == (
        "b",
        "b has the most room: 12 GiB is not promised on a GPU; next is a, where 4 GiB is not promised.",
    )


def test_pack_leaves_large_gaps_whole_and_takes_no_node_that_is_full() -> None:
    sites = [site("a", 15), site("b", 4), site("c", 13)]
    chosen = choose_node(Policy.PACK, sites, Wish(2 * GIB))
    assert (chosen.node, chosen.reason) == (
        "c",
        "c is the fullest that has room for it: 3 GiB is not promised on a GPU; next is b, where 12 GiB is "
        "not promised.",
    )
    assert choose_node(Policy.PACK, sites, Wish(10 * GIB)).reason.endswith("; no other has room for it.")
    nowhere = choose_node(Policy.PACK, sites, Wish(14 * GIB))
    assert nowhere.reason.startswith("No node has 14 GiB that is not promised. b has the most room: 12 GiB")


def test_soonest_takes_what_is_free_before_who_gives_way_before_who_ends() -> None:
    free = site("z", 15, free=9)
    idle = site("y", 15, Holder("notebook", 8 * GIB, 3.0, idle=True), free=1)
    ending = site("x", 15, Holder("train", 8 * GIB, 600.0), free=1)
    never = site("w", 0, free=1)
    wish = Wish(8 * GIB)
    order = []
    left = [never, ending, idle, free]
    while left:
        order.append(choose_node(Policy.SOONEST, left, wish).node)
        left = [each for each in left if each.name != order[-1]]
    assert order == ["z", "y", "x", "w"]
    assert choose_node(Policy.SOONEST, [free, idle], wish).reason == (
        "z has it first: 9 GiB free, 1 GiB is not promised; next is y: 1 GiB free, the rest within 3 s from "
        "notebook (8 GiB, idle)."
    )
    assert choose_node(Policy.SOONEST, [ending, never], wish).reason == (
        "x has it first: 1 GiB free, the rest within 10 min from train (8 GiB); next is w: 1 GiB free, and no known "
        "end is enough."
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (90, "1 min 30 s"), (599, "10 min"), (7200, "2 h"), (5430, "1 h 30 min")]
)
def test_a_reason_writes_a_span_as_the_command_line_does(seconds: float, text: str) -> None:
    ending, never = site("x", 15, Holder("train", 8 * GIB, seconds), free=1), site("w", 0, free=1)
    assert f"the rest within {text} from train" in choose_node(Policy.SOONEST, [ending, never], Wish(8 * GIB)).reason


def test_soonest_says_so_where_nobody_can_know() -> None:
    chosen = choose_node(Policy.SOONEST, [site("a", 16, free=0), site("b", 10, free=0)], Wish(2 * GIB))
    assert chosen.node == "b"
    assert chosen.reason.startswith("No forecast says where 2 GiB is free first. b has the most room")


def test_the_idle_give_way_one_after_the_other_and_of_ends_the_last_counts() -> None:
    idle = [Holder("n1", 4 * GIB, 5.0, idle=True), Holder("n2", 4 * GIB, 6.0, idle=True)]
    ends = [Holder("t1", 4 * GIB, 5.0), Holder("t2", 4 * GIB, 10.0)]
    both = [site("a", 16, *idle, free=0), site("b", 16, *ends, free=0)]
    assert choose_node(Policy.SOONEST, both, Wish(8 * GIB)).node == "b"  # 10 s, and 11 on the other


@every_policy
def test_launches_under_way_count_as_if_they_were_there(policy) -> None:
    busy = site("a", 0, free=16, under_way=10 * GIB)
    chosen = choose_node(policy, [busy, site("b", 4, free=12)], Wish(8 * GIB))
    assert chosen.node == "b"


def test_of_several_cards_the_one_that_has_least_counts() -> None:
    even = Site("a", True, tuple(Card(f"GPU-a{n}", 16 * GIB, 16 * GIB, 8 * GIB, 8 * GIB) for n in range(2)))
    uneven = Site("b", True, (Card("GPU-b0", 16 * GIB, 16 * GIB, 0, 16 * GIB),
                              Card("GPU-b1", 16 * GIB, 16 * GIB, 12 * GIB, 4 * GIB)))  # fmt: skip
    assert choose_node(Policy.SPREAD, [even, uneven], Wish(GIB, 1)).node == "b"
    assert choose_node(Policy.SPREAD, [even, uneven], Wish(GIB, 2)).node == "a"
    assert format_size(8 * GIB) in choose_node(Policy.SPREAD, [even, uneven], Wish(GIB, 2)).reason
