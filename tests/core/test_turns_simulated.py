"""Turns of computing on a simulated clock: shares, limits, work and the wait of bursts, with draining as measured."""

from statistics import median

import pytest

from benchmarks.simulation.turns import LOOK, Program, farthest, play, shares
from benchmarks.simulation.turns_mixes import AHEAD, GEMM, MIXES, NOTEBOOK, TRAINING
from scheduler.core.turns import Mode

SECONDS = 40.0


@pytest.mark.parametrize(
    ("mix", "due"),
    [("GEMM 75/25", (0.75, 0.25)), ("GEMM 90/10", (0.9, 0.1)), ("trainings 50/30/20", (0.5, 0.3, 0.2))],
)
def test_shares_are_within_three_points_of_what_is_due_in_any_ten_seconds(mix, due):
    played = play(MIXES[mix], SECONDS)
    assert farthest(played) < 0.03
    assert tuple(shares(played).values()) == pytest.approx(due, abs=0.01)
    assert sum(played.done.values()) / SECONDS >= 0.97
    at_once = play(MIXES[mix], SECONDS, mode=Mode.SHARED)
    assert at_once.stops == 0
    assert sum(at_once.done.values()) / SECONDS == pytest.approx(0.92, abs=0.01)


@pytest.mark.parametrize("cycle", [0.2, 1.0, 3.0])
def test_a_notebook_beside_a_training_waits_for_nothing_and_nobody_is_stopped(cycle):
    played = play(MIXES["training and notebook"], SECONDS, cycle)
    assert played.stops == 0
    assert max(played.bursts["notebook"]) == pytest.approx(2 * NOTEBOOK.busy), "at half speed, as the driver has it"
    assert sum(played.done.values()) / SECONDS >= 0.98


def test_a_notebook_beside_two_trainings_is_never_stopped_either():
    played = play(MIXES["300/100 and notebook"], SECONDS)
    assert median(played.bursts["notebook"]) <= 2 * NOTEBOOK.busy + 0.001
    assert farthest(played) < 0.03
    assert sum(played.done.values()) / SECONDS >= 0.97


def test_one_that_sleeps_while_the_card_works_for_it_has_its_share():
    played = play(MIXES["50/50, one sleeps"], SECONDS)
    assert farthest(played) < 0.03


def test_ten_who_compute_between_two_looks_have_no_more_than_their_shares():
    many = [Program(f"n{place}", 0.001, busy=0.2, every=1.03) for place in range(10)]
    had = shares(play([Program("steady", TRAINING), *many], SECONDS / 2), begin=5.0)
    assert had["steady"] >= 0.9 / 11


def test_eight_of_equal_weight_have_an_eighth_each():
    played = play(MIXES["eight"], SECONDS)
    assert farthest(played) < 0.03
    assert sum(played.done.values()) / SECONDS >= 0.97


def test_one_whose_draining_takes_longer_than_its_turn_has_no_more_than_its_share():
    played = play(MIXES["50/50, one far ahead"], SECONDS, cycle=0.2)
    assert farthest(played) < 0.03
    assert shares(played, 10.0)["ahead"] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("cycle", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("drain", [GEMM, TRAINING, AHEAD])
def test_a_limit_is_kept_alone(cycle, drain):
    played = play([Program("a", drain, limit=30)], 3 * SECONDS, cycle)
    assert shares(played, begin=12.0)["a"] == pytest.approx(0.3, abs=0.02)


def test_a_limit_is_kept_on_two_cards_and_the_rest_goes_to_the_others():
    had = shares(play(MIXES["two cards, limit 20"], SECONDS), begin=10.0)
    assert had["wide"] == pytest.approx(0.2, abs=0.02)
    assert min(had["left"], had["right"]) >= 0.77


def test_one_on_two_cards_gets_half_of_each_beside_one_on_either():
    played = play(MIXES["two cards"], SECONDS)
    assert farthest(played) < 0.03
    assert shares(played)["wide"] == pytest.approx(0.5, abs=0.02)


def test_who_computes_for_a_while_every_so_often_is_no_better_off_than_by_its_share():
    """It sleeps just long enough to be seen to rest, and begins anew with what it could save."""
    steady = Program("steady", TRAINING)
    sly = [Program(f"sly{place}", 0.002, busy=0.25, every=0.3 + 0.01 * place) for place in range(3)]
    played = play([steady, *sly], SECONDS)
    assert shares(played, 10.0)["steady"] >= 0.25 - LOOK
