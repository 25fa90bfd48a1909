"""Turns of computing, event by event: who is stopped, who goes, and what each of them had."""

import pytest

from scheduler.core.turns import (
    Admitted,
    Barred,
    CardSeen,
    Changed,
    Computes,
    Go,
    Joined,
    Left,
    Mode,
    NotStopped,
    Rests,
    Rules,
    Started,
    Stop,
    Stopped,
    Ticked,
    Turns,
    Yields,
    decide,
    standing,
    wake,
)


class Host:
    """Turns that get one event after the other; `at` is the time."""

    def __init__(self, *names: str, cards: tuple[str, ...] = ("g",), **rules: float) -> None:
        self.turns = Turns(Rules(**rules))
        self.at = 0.0
        for card in cards:
            self.tell(CardSeen(0.0, card, Mode.TURNS))
        for name in names:
            self.tell(Joined(0.0, name, cards))

    def tell(self, *events):
        self.turns, effects = decide(self.turns, *events)
        return effects

    def hear(self, what, *args):
        return self.tell(what(self.at, *args))

    def tick(self):
        """As `wake` asks."""
        due = wake(self.turns)
        assert due is not None
        assert due > self.at
        self.at = due
        return self.hear(Ticked)

    def go_on(self):
        """Until something is asked."""
        while not (effects := self.tick()):
            pass
        return effects

    def standing(self, name):
        return standing(self.turns, name)


def compete(*names: str, **rules: float) -> Host:
    """The first has the turn, all others are stopped: they began to compute as soon as they were there."""
    host = Host(*names, **rules)
    for name in names:
        host.hear(Computes, name)
    for name in names[1:]:
        host.hear(Stopped, name)
    return host


def test_one_alone_is_never_stopped_and_nobody_is_to_wake_up_for_it():
    host = Host("a", "idle")
    assert host.hear(Computes, "a") == []
    assert wake(host.turns) is None
    host.at = 3600.0
    assert host.hear(Ticked) == []
    assert host.standing("a").had == host.standing("a").due == 3600.0


def test_a_second_is_stopped_and_goes_when_the_first_has_had_its_part():
    host = compete("a", "b")
    assert (host.standing("a").has_turn, host.standing("b").stopped) == (True, True)
    assert host.tick() == [Stop("a")]
    assert host.at == pytest.approx(0.5)
    host.at = 0.6  # draining takes a while, and counts
    assert host.hear(Stopped, "a") == [Go("b")]
    assert host.standing("a").had == pytest.approx(0.6)
    assert host.hear(Started, "b") == []
    assert host.standing("b").held_back == pytest.approx(0.6)


def test_nobody_goes_before_the_one_before_it_is_drained():
    host = compete("a", "b", "c")
    assert host.tick() == [Stop("a")]
    host.at += 10.0
    assert host.hear(Ticked) == []
    assert host.hear(Computes, "a") == []
    assert host.hear(Stopped, "a") == [Go("b")]


def test_what_draining_overran_is_owed():
    host = compete("a", "b")
    host.tick()
    host.at = 1.5  # one second more than a's turn
    host.hear(Stopped, "a")
    host.hear(Started, "b")
    assert host.go_on() == [Stop("b")]
    assert host.at == pytest.approx(2.5), "b has two turns, one after the other"


def test_who_rests_is_not_stopped_and_passes_its_turn_on():
    host = compete("a", "b")
    assert host.hear(Rests, "a") == [Go("b")]
    host.hear(Started, "b")
    assert wake(host.turns) is None


def test_one_that_seems_to_rest_is_stopped_to_make_sure_and_let_go_at_once():
    host = compete("a", "b")
    host.at = 0.1
    assert host.hear(Yields, "a") == [Stop("a")]
    host.at = 0.102
    assert host.hear(Stopped, "a") == [Go("a"), Go("b")]
    host.hear(Started, "a")
    host.hear(Started, "b")
    assert host.standing("b").has_turn
    assert wake(host.turns) is None
    assert host.hear(Yields, "b") == [], "nobody else takes turns"


def test_one_that_did_compute_keeps_what_is_left_of_its_turn():
    host = compete("a", "b")
    host.at = 0.1
    host.hear(Yields, "a")
    host.at = 0.12
    assert host.hear(Stopped, "a") == [Go("b")]
    host.hear(Started, "b")
    assert host.go_on() == [Stop("b")]
    host.hear(Stopped, "b")
    host.hear(Started, "a")
    began = host.at
    assert host.go_on() == [Stop("a")]
    assert host.at - began == pytest.approx(0.75, abs=0.05), "its next one and what was left, one and a half at most"


def test_one_that_computes_without_a_processor_is_not_asked_again():
    host = compete("a", "b")
    host.at = 0.1
    host.hear(Yields, "a")
    host.at = 0.12
    host.hear(Stopped, "a")
    host.hear(Started, "b")
    host.go_on()
    host.hear(Stopped, "b")
    host.hear(Started, "a")
    assert host.hear(Yields, "a") == []


def test_one_that_is_stopped_and_is_seen_to_have_rested_is_let_go_and_waits_for_no_turn():
    host = compete("a", "b")
    assert host.hear(Rests, "b") == [Go("b")]
    assert host.hear(Started, "b") == []
    assert wake(host.turns) is None, "the other is alone"


def test_what_is_seen_afterwards_is_charged_to_who_computed_and_given_back_to_who_had_the_turn():
    host = Host("a", "b", "burst")
    for name in ("a", "b"):
        host.hear(Computes, name)
    host.hear(Stopped, "b")
    host.at = 0.2
    host.hear(Computes, "burst", ("g",), 0.6, 0.2, 0.05)  # 0.6: over a longer while
    host.hear(Rests, "burst")
    had = [host.standing(name).had for name in ("a", "b", "burst")]
    assert had == pytest.approx([0.15, 0.0, 0.05])


def test_who_wakes_may_compute_beside_the_turn_for_what_it_has_saved():
    host = Host("training", "notebook")
    host.hear(Computes, "training")
    host.at = 10.0
    assert host.hear(Computes, "notebook") == []
    host.at = 10.1
    assert host.hear(Rests, "notebook") == []
    assert host.standing("notebook").had == pytest.approx(0.05), "the card's time is divided among those that compute"
    host.at = 11.0
    assert host.hear(Computes, "notebook") == []
    assert host.tick() == [Stop("notebook")]
    assert host.at == pytest.approx(12.0), "it pays for a second and is given half a one"


def test_a_limit_holds_back_one_that_is_alone():
    host = Host()
    host.tell(Joined(0.0, "a", ("g",), limit=30))
    host.hear(Computes, "a")
    assert host.tick() == [Stop("a")]
    assert host.at == pytest.approx(0.3)
    host.hear(Stopped, "a")
    assert host.tick() == [Go("a")]
    assert host.at == pytest.approx(1.0)


def test_weights_divide_a_cycle():
    host = compete("a", "b", cycle=2.0)
    host.hear(Changed, "a", 300)
    host.hear(Changed, "b", 100)
    ends = []
    while host.at < 60:
        for effect in host.tick():
            host.hear({Stop: Stopped}[type(effect)], effect.container)
            ends.append(host.at)
            host.hear(Started, "b" if effect.container == "a" else "a")
    assert host.standing("a").had / host.standing("b").had == pytest.approx(3, rel=0.05)


def test_a_priority_above_all_others_has_the_card_until_its_time_is_over():
    host = compete("a", "b", longest_priority=5.0)
    host.at = 0.1
    assert host.hear(Changed, "b", 100, None, 10) == [Stop("a")]
    assert host.hear(Stopped, "a") == [Go("b")]
    host.hear(Started, "b")
    assert host.tick() == [Stop("b")]
    assert host.at == pytest.approx(5.1)
    assert host.hear(Stopped, "b") == [Go("a")]
    host.hear(Started, "a")
    assert host.tick() == [Stop("a")], "and again"


def test_one_on_two_cards_has_the_turn_on_both_or_on_none():
    host = Host(cards=("g", "h"))
    host.tell(Joined(0.0, "wide", ("g", "h")), Joined(0.0, "left", ("g",)), Joined(0.0, "right", ("h",)))
    for name in ("left", "right", "wide"):
        effects = host.hear(Computes, name)
    assert effects == [Stop("wide")]
    host.hear(Stopped, "wide")
    assert host.tick() == [Stop("left"), Stop("right")]
    assert host.hear(Stopped, "left") == []
    assert host.hear(Stopped, "right") == [Go("wide")]


def test_who_is_barred_is_let_go_and_the_turn_goes_on():
    host = compete("a", "b", "c")
    assert host.hear(Barred, "b") == [Go("b")]
    assert host.hear(Barred, "a") == [Go("c")]
    host.hear(Started, "b")
    host.hear(Started, "c")
    assert host.hear(Computes, "b") == []
    assert host.hear(Admitted, "b") == [Stop("b")]


def test_one_that_is_barred_while_it_is_being_stopped_is_let_go_once_that_has_been_done():
    host = compete("a", "b")
    host.tick()
    assert host.hear(Barred, "a") == []
    assert host.hear(Stopped, "a") == [Go("a"), Go("b")]


def test_one_that_cannot_be_stopped_is_taken_out_and_owes_what_it_computes():
    host = compete("a", "b")
    host.tick()
    assert host.hear(NotStopped, "a") == [Go("b")]
    host.hear(Started, "b")
    host.at += 4.0
    host.hear(Ticked)
    assert host.standing("a").had == pytest.approx(2.5)
    assert host.hear(Admitted, "a") == [Stop("a")]


def test_one_that_left_is_asked_nothing_and_its_late_answers_mean_nothing():
    host = compete("a", "b")
    assert host.tick() == [Stop("a")]
    assert host.hear(Left, "a") == [Go("b")]
    assert host.hear(Stopped, "a") == []
    assert host.hear(Started, "b") == host.hear(Started, "b") == []


def test_a_card_that_is_shared_from_now_on_lets_everybody_go():
    host = compete("a", "b", "c")
    assert host.hear(CardSeen, "g", Mode.SHARED) == [Go("b"), Go("c")]
    assert wake(host.turns) is None
    host.hear(Started, "b")
    assert host.hear(CardSeen, "g", Mode.TURNS) == [Stop("b")]
