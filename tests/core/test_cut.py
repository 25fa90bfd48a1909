"""Where ranks can be stopped together: each rule by itself, and every way in which small trainings come to a cut."""

from dataclasses import replace
from math import inf

import pytest

from benchmarks.simulation.exploring.cut_explorer import TRAININGS, Unsound, explore
from scheduler.core import cut
from scheduler.core.cut import STALLED, Channel, Cut, Seat, advance, missing, paired, together

X, Y = Channel(1), Channel(2)
SMALL = {str(training): replace(training, run=1) for training in TRAININGS}


def seat(channel=X, rank=0, begun=0, **more):
    return Seat(channel, rank, **{"ranks": 2, "begun": begun, "given": begun, "limit": begun} | more)


def test_who_has_begun_less_is_let_go_on_up_to_the_others_and_nobody_beyond():
    found = advance(Cut(), 0.0, {7: [seat(begun=5)], 8: [seat(rank=1, begun=3)]})
    assert (found.limits, found.behind, found.reached) == ({X: 5}, {8}, False)


@pytest.mark.parametrize(
    ("wrong", "calling"),
    [({}, set()), ({"given": 4}, {8}), ({"limit": 4}, set()), ({"limit": 6}, set())],
    ids=["nothing", "a call that has not returned", "a limit not in force", "one that was too high"],
)
def test_a_cut_is_where_all_have_begun_the_same_and_nobody_can_begin_more(wrong, calling):
    found = advance(Cut(), 0.0, {7: [seat(begun=5)], 8: [seat(rank=1, begun=5, **wrong)]})
    assert (found.reached, found.calling) == (not wrong, calling)


def test_who_is_behind_and_held_back_elsewhere_is_let_go_on_there_once_it_stalls():
    looks = {7: [seat(begun=5)], 8: [seat(rank=1, begun=4), seat(Y, 1, begun=2, wanted=3)], 9: [seat(Y, begun=2)]}
    first = advance(Cut(), 0.0, looks)
    assert first.limits == {X: 5, Y: 2}
    assert advance(first, 2 * STALLED, looks).limits == {X: 5, Y: 3}
    moved = looks | {8: [seat(rank=1, begun=4), seat(Y, 1, begun=3, wanted=3)]}
    assert advance(first, 2 * STALLED, moved).behind == {8, 9}


def test_an_end_of_sends_that_is_not_there_yet_has_begun_nothing():
    sends = Channel(1, 0, 1)
    looks = {7: [seat(), seat(sends, begun=2)], 8: [seat(rank=1)]}
    assert paired(looks)[8][1:] == [seat(sends, 1)]
    assert advance(Cut(), 0.0, looks).behind == {8}
    assert not advance(Cut(), 0.0, looks | {8: [seat(rank=1, left=True)]}).behind, "its rank begins nothing more"


def test_a_communicator_of_one_rank_and_one_that_is_left_keep_nobody_waiting():
    looks = {7: [seat(begun=1, limit=0, ranks=1)], 8: [seat(begun=3)], 9: [seat(rank=1, begun=5, given=4, left=True)]}
    assert advance(Cut(), 0.0, looks).reached


def test_ranks_that_are_nowhere_here_are_counted_where_the_communicator_is_used():
    assert missing({7: [seat(begun=1, ranks=4)], 8: [seat(rank=1, ranks=4)]}) == {1: 2}
    assert missing({7: [seat(ranks=4)]}) == {}
    assert missing({7: [seat(begun=1)], 8: [seat(rank=1, left=True)]}) == {}


def test_containers_that_share_communicators_are_together_by_others_too():
    assert together({"d": {3}, "b": {1, 2}, "c": {2}, "a": {1}, "e": {4}, "f": ()}) == dict.fromkeys("abc", "a")


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(its, id=name, marks=pytest.mark.long if len(its.programs) > 3 else ())
        for name, its in SMALL.items()
    ],
)
def test_every_way_leads_to_a_cut_at_which_every_card_comes_to_its_end(training):
    assert explore(training) > 100


def test_whoever_dies_at_whatever_step_leaves_nobody_behind_the_gate():
    assert explore(SMALL["one communicator, waited for"], kills=True) > 1000


@pytest.mark.parametrize(
    ("training", "broken", "said"),
    [
        ("one of three in the second", {"STALLED": inf}, "no cut is reached"),
        ("one communicator", {"advance": lambda *at: _forced(at, calling=frozenset())}, "after the cut|to its end"),
        ("one communicator", {"advance": lambda *at: _forced(at, in_force=True)}, "after the cut"),
        ("a pipeline, one ahead", {"advance": lambda *at: _forced(at, behind=frozenset())}, "after the cut|to its end"),
    ],
)
def test_the_explorer_finds_a_rule_that_is_wrong(monkeypatch, training, broken, said):
    for name, value in broken.items():
        monkeypatch.setattr(cut, name, value)
    with pytest.raises(Unsound, match=said):
        explore(replace(SMALL[training], run=2))


def _forced(at, **blind):
    """The rule, without one of the three things that make a cut."""
    found = advance(*at)
    in_force = all(seat.limit == found.limits[seat.channel] for seats in at[2].values() for seat in seats)
    its = {"in_force": in_force, "behind": found.behind, "calling": found.calling} | blind
    return replace(found, reached=its["in_force"] and not its["behind"] and not its["calling"])
