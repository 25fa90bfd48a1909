"""Who goes to another card so that somebody who waits fits: the cheapest set of moves, within its bound."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.simulation.pieces import jobs, play
from scheduler.core.arbiter import handle
from scheduler.core.effects import Effect, Granted, Relocate, Restore, TakeBack
from scheduler.core.events import (
    CameBack,
    ContainerAdded,
    GpuDrained,
    GpuSeen,
    Movable,
    Needed,
    NotMoved,
    PreemptionChanged,
    Returned,
    SessionOpened,
    StaysOnCard,
    SwappedOut,
    Ticked,
)
from scheduler.core.invariants import violations
from scheduler.core.state import Mode, Preemption, State

CARD, HALF = 80, 40
RULE = Preemption(mode=Mode.OFF, out=10, back=20, least=1.0, move_share=0.05)


class Host:
    """`cards` of 80 bytes each; containers take their whole quota at once, or wait."""

    def __init__(self, cards: int = 3, rule: Preemption = RULE) -> None:
        self.state, self.now, self.count = State(), 0.0, 0
        self.granted: set[str] = set()
        self.tell(*(GpuSeen(0.0, f"g{number}", CARD) for number in range(cards)), PreemptionChanged(0.0, rule))

    def tell(self, *events: Any) -> list[Effect]:
        found: list[Effect] = []
        for event in events:
            self.state, effects = handle(self.state, event)
            assert violations(self.state) == []
            for effect in effects:
                if isinstance(effect, TakeBack):
                    effects += tuple(self.tell(Returned(self.now, effect.gpu, {}, all=True)))
                if isinstance(effect, Granted):
                    self.granted.add(effect.container)
            found += effects
        return found

    def add(self, name: str, gpu: int, size: int = HALF, **fields: Any) -> None:
        self.count += 1
        self.tell(
            ContainerAdded(self.now, name, {f"g{gpu}": size}, **fields), SessionOpened(self.now, self.count, name)
        )
        self.tell(Needed(self.now, self.count, 1, f"g{gpu}", size, collected=True))

    def passes(self, seconds: float) -> list[Relocate]:
        self.now += seconds
        return [each for each in self.tell(Ticked(self.now)) if isinstance(each, Relocate)]

    def carries_out(self, effect: Relocate) -> list[Relocate]:
        effects = self.tell(SwappedOut(self.now, effect.container, {effect.old: effect.new}))
        assert Restore(effect.container) in effects
        return [each for each in self.tell(CameBack(self.now, effect.container)) if isinstance(each, Relocate)]


def pieces(**fields: Any) -> Host:
    """Two cards are half full, and one who wants a whole card waits on the second."""
    host = Host(2)
    host.add("a", 0, **fields)
    host.add("b", 1, **fields)
    host.add("waits", 1, CARD)
    return host


def test_a_holder_goes_to_another_card_so_that_a_whole_one_is_free() -> None:
    host = pieces()
    (moves,) = host.passes(3600)
    assert moves == Relocate("b", "g1", "g0", "waits")
    assert host.passes(60) == []  # one at a time
    host.carries_out(moves)
    assert host.granted == {"a", "b", "waits"}
    assert dict(host.state.containers["b"].quota) == {"g0": HALF}


def test_who_waits_goes_itself_where_there_is_room() -> None:
    host = Host(2)
    host.add("a", 0, CARD)
    host.add("waits", 0)
    (moves,) = host.passes(60)
    assert moves == Relocate("waits", "g0", "g1", "waits")
    host.carries_out(moves)
    assert "waits" in host.granted


def test_a_set_of_moves_is_done_one_after_the_other() -> None:
    """Two halves have to leave the card, and there is one free piece on each of two others."""
    host = Host(3)
    host.add("a", 0, 50)
    host.add("b", 1, 50)
    host.add("c", 2, 30)
    host.add("d", 2, 20)
    host.add("waits", 2, CARD, guaranteed=False)
    moved, moves = [], host.passes(7200)
    while moves:
        moved.append(moves[0].container)
        moves = host.carries_out(moves[0]) or host.passes(60)
    assert sorted(moved) == ["c", "d"]
    assert "waits" in host.granted


@pytest.mark.parametrize(
    "change",
    [
        lambda host: host.tell(*(GpuDrained(0.0, "g0", drained=True), Movable(0.0, "waits", False))),
        lambda host: host.tell(*(Movable(0.0, name, False) for name in host.state.containers)),
        lambda host: host.tell(*(StaysOnCard(0.0, name) for name in host.state.containers)),
        lambda host: host.tell(PreemptionChanged(0.0, replace(RULE, move_share=0.0))),
        lambda host: host.add("other", 0, 30),  # there is no room for it
    ],
    ids=["a card out of service", "it would not come back", "not on another card", "switched off", "no room"],
)
def test_nobody_moves(change: Any) -> None:
    host = pieces()
    change(host)
    assert host.passes(3600) == []


@pytest.mark.parametrize("fields", [{"guaranteed": True}, {"preemptible": False}])
def test_guaranteed_ones_and_those_that_have_opted_out_stay(fields: dict[str, Any]) -> None:
    assert pieces(**fields).passes(3600) == []


def test_moves_take_no_more_than_their_share_of_the_time() -> None:
    host = pieces()
    seconds = RULE.seconds(HALF)
    assert host.passes(0.9 * seconds / (2 * RULE.move_share)) == []  # two cards
    assert host.passes(0.2 * seconds / (2 * RULE.move_share)) != []


def test_one_that_was_moved_or_could_not_be_stays_for_a_while() -> None:
    host = pieces()
    (moves,) = host.passes(3600)
    host.tell(NotMoved(host.now, moves.container))
    next_moves = host.passes(10)
    assert all(each.container != moves.container for each in next_moves)


def test_a_week_of_whole_and_half_cards_waits_less() -> None:
    """The figure of docs/deciding.md, of fewer launches."""
    work = jobs(0)[:60]
    without, with_ = play(work, 0.0), play(work, 0.01, check=True)
    assert sum(with_.waits) <= 0.6 * sum(without.waits)
    assert with_.moving_share <= 0.01
    assert len(with_.waits) == len(without.waits) == len(work)
