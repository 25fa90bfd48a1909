"""Every state and every split of small hosts; `simulation.explore` has the larger ones (docs/deciding.md)."""

from dataclasses import replace
from itertools import product
from math import inf

import pytest

from benchmarks.simulation.exploring import among_people, deadlock
from benchmarks.simulation.exploring.explorer import Broken, explore, hosts
from benchmarks.simulation.exploring.keys import NOW, Host, build
from benchmarks.simulation.exploring.splits import Cards, check
from scheduler.core import changes, safety
from scheduler.core.arbiter import handle
from scheduler.core.events import Returned, SwappedOut, Ticked
from scheduler.core.moves import preemption
from scheduler.core.people import heads
from scheduler.core.policies import POLICIES
from scheduler.core.state import Mode, Stage

PAIR = Host(2, ((2,), (1,)), "fair")
ACROSS = Host(1, ((1, 1), (1, 0)), "fair")  # one on two GPUs


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_state_of_a_small_host_is_broken(policy):
    assert sum(explore(host) for host in hosts(policy, 3, 2, gpus=1, pauses=False, changes=False)) >= 50


def test_pauses_and_changes_of_quota_break_nothing():
    assert explore(Host(2, ((2,), (2,)), "fair", pauses=True, changes=True)) > 100


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_restarts_break_nothing(policy):
    for quotas in ((2,), (1,)), ((2,), (2,), (1,)):
        assert explore(Host(2, quotas, policy, restarts=True)) > explore(Host(2, quotas, policy))


RESERVED = Host(2, ((2,), (2,)), "fair", owners=(0, 1), reserved=1)


@pytest.mark.parametrize("host", [RESERVED, replace(RESERVED, policy="fifo", reserved=2)], ids=["fair", "fifo"])
def test_a_reservation_that_begins_and_ends_at_any_moment_breaks_nothing(host):
    assert explore(host) > 1.5 * explore(replace(host, reserved=0))


def test_the_explorer_finds_a_reservation_that_would_count_as_memory_of_everybody(monkeypatch):
    """Where who draws from it is not looked at by the banker's check, they and others wait for each other."""
    real = safety.harmless
    monkeypatch.setattr("scheduler.core.safety.harmless",
                        lambda before, after, mover: bool(before.reserves) or real(before, after, mover))  # fmt: skip
    with pytest.raises(Broken, match="may never end"):
        explore(RESERVED)


def test_the_explorer_finds_who_is_expected_for_ever(monkeypatch):
    monkeypatch.setattr("scheduler.core.step.Step._forget_expected", lambda step: None)
    with pytest.raises(Broken, match="is expected still"):
        explore(Host(2, ((2,), (2,)), "fair", restarts=True))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_foreign_memory_that_comes_and_goes_breaks_nothing(policy):
    for host in Host(3, ((3,), (3,)), policy, foreign=True), Host(2, ((2,), (1,), (1,)), policy, foreign=True):
        assert explore(host) > 2 * explore(replace(host, foreign=False))


def test_foreign_memory_pauses_and_changes_of_quota_break_nothing():
    assert explore(replace(PAIR, pauses=True, changes=True, foreign=True)) > 500
    assert explore(replace(ACROSS, changes=True, foreign=True)) > 200


def test_the_explorer_finds_a_deadlock_that_foreign_memory_leaves_behind(monkeypatch):
    real = safety.harmless

    def as_it_is(state):
        return replace(state, gpus={gpu: replace(card, most=card.capacity) for gpu, card in state.gpus.items()})

    monkeypatch.setattr(
        "scheduler.core.safety.harmless", lambda before, after, mover: real(as_it_is(before), as_it_is(after), mover)
    )
    with pytest.raises(Broken, match="may never end"):
        explore(Host(3, ((3,), (3,)), "fifo", foreign=True))


def test_two_gpus_break_nothing():
    assert explore(Host(2, ((2, 2), (2, 1)), "fair")) > 100


@pytest.mark.parametrize("mode", [Mode.IDLE, Mode.ROTATE])
def test_preemption_breaks_nothing_and_helps_who_is_due(mode):
    for host in PAIR, ACROSS:
        assert explore(replace(host, gives_way=mode)) > 200


TWO = Host(2, ((2,), (1,), (2,)), "fair", owners=(0, 0, 1))  # two containers of one person, and another's
ONES = Host(2, ((1,), (1,), (1,)), "fair", owners=(0, 0, 1))


GROUP = Host(4, ((2,), (2,), (3,)), "fair", owners=(0, 1, 2), group=2, gives_way=Mode.SHARE)


@pytest.mark.parametrize(
    "host", [TWO, replace(ACROSS, owners=(0, 1)), replace(ONES, gives_way=Mode.SHARE), GROUP], ids=str
)
def test_elections_caps_and_moves_for_shares_break_nothing(host):
    assert explore(host, limit=600) > 20


def test_the_explorer_finds_a_head_that_is_passed_over(monkeypatch):
    real = heads.elect
    monkeypatch.setattr(
        "scheduler.core.step.heads.elect",
        lambda state: real(replace(state, people=state.people._replace(heads={}, look=-inf))),
    )
    with pytest.raises(Broken, match="was head of g0"):
        explore(Host(1, ((1,), (1,), (1,)), "fair", owners=(0, 1, 2)))


def test_a_head_that_was_replaced_may_return_memory_in_the_same_step(monkeypatch):
    """B's memory comes back, 2 of 3 units, so its call gives its place to A's; then it returns one of them."""
    host = Host(3, ((2,), (3,)), "fair", owners=(0, 1), gives_way=Mode.SHARE)
    leaves, returns = (False, True, Stage.LEAVING, False), (False, False, Stage.RETURNING, False)
    calls = ((2, 0, 1, True, False, False),), ((0, 0, 1, True, False, False), (1, 0, 2, True, True, False))
    a, b = ((2,), (1,), (0,), False, leaves, calls[0], 0, (0,)), ((3,), (0,), (2,), False, returns, calls[1], 1, (1,))
    before = build(host, ((3,), (a, b)))

    def wrong(*events):
        step, after = (), before
        for event in events:
            after, effects = handle(after, event)
            step += (((event,), effects),)
        assert after.people.heads["g0"].container == "A"
        return among_people.wrong(before, after, step)

    events = SwappedOut(NOW, "A"), Returned(NOW, "g0", {1: 1}, all=True)
    monkeypatch.setattr(heads, "chosen_of", lambda state, gpu, calls, known: min(calls, key=lambda r: r.container))
    assert wrong(*events) == []
    monkeypatch.setattr(heads._Election, "_instead", lambda self, gpu, chosen: self._chosen(gpu))
    assert "was head of g0" in str(wrong(Ticked(NOW), *events)), "replaced before it had more than its share"


def test_the_explorer_finds_a_cap_on_somebodys_first_container(monkeypatch):
    monkeypatch.setattr("scheduler.core.people.sharing.held_back_by", lambda *_: True)
    with pytest.raises(Broken, match="held back"):
        explore(Host(1, ((1,), (1,), (1,)), "fair", owners=(0, 1, 2)))


def test_the_explorer_finds_who_is_moved_for_one_that_gains_less_than_it_loses(monkeypatch):
    monkeypatch.setattr("scheduler.core.people.sharing.gives_to", lambda *_, **__: True)
    with pytest.raises(Broken, match="lacks more of g0 than"):
        explore(Host(2, ((2,), (2,)), "fair", owners=(0, 1), gives_way=Mode.SHARE))


def test_the_explorer_finds_whose_side_falls_below_its_share_though_another_could_be_spared(monkeypatch):
    """As if the largest went first, whatever its side keeps."""
    monkeypatch.setattr(preemption, "rank", lambda _, holder: (-sum(holder.leased.values()),))
    monkeypatch.setattr(preemption, "product", lambda _, needs: product((False,), needs))
    with pytest.raises(Broken, match="could be spared"):
        explore(Host(5, ((3,), (1,), (2,)), "fair", owners=(0, 0, 1), gives_way=Mode.SHARE))


def test_the_explorer_finds_who_nobody_gives_way_to(monkeypatch):
    monkeypatch.setattr("scheduler.core.moves.preemption._goes_for", lambda *_, **__: False)
    with pytest.raises(Broken, match="nobody gives way"):
        explore(replace(PAIR, gives_way=Mode.ROTATE))


def test_the_explorer_finds_two_that_are_asked_to_go_at_once(monkeypatch):
    real = preemption.preempt

    def twice(step, *more):
        real(step, *more)
        for each in step.state.containers.values():
            if each.leased:
                step.state = changes.put_container(step.state, replace(each, stage=Stage.LEAVING))

    monkeypatch.setattr("scheduler.core.moves.preemption.preempt", twice)
    with pytest.raises(Broken, match="at once"):
        explore(replace(PAIR, gives_way=Mode.IDLE))


def test_the_explorer_finds_a_deadlock_where_there_is_one(monkeypatch):
    """Without the banker's check, two halves that both want more come about at once."""
    monkeypatch.setattr("scheduler.core.safety.harmless", lambda before, after, mover: True)
    with pytest.raises(AssertionError, match="may never end"):
        explore(Host(2, ((2,), (2,)), "fifo"))


@pytest.mark.parametrize(
    "cards",
    [
        Cards(4, 4),
        Cards(4, 2, pauses=True),
        Cards(2, 2, gpus=2, pauses=True),
        Cards(3, 3, pauses=True, foreign=True),
        Cards(2, 2, gpus=2, foreign=True),
    ],
    ids=str,
)
def test_no_step_from_any_split_breaks_what_is_certain(cards):
    assert sum(check(cards, first)[1] for first in range(len(cards.parts()))) > 1000


def test_the_splits_find_a_step_that_takes_certainty_away(monkeypatch):
    monkeypatch.setattr("scheduler.core.safety.harmless", lambda before, after, mover: True)
    with pytest.raises(Broken, match="may never end"):
        check(Cards(2, 2), first=2)


def test_the_splits_find_somebody_who_would_wait_for_ever(monkeypatch):
    monkeypatch.setattr("scheduler.core.safety.harmless", lambda before, after, mover: False)
    with pytest.raises(Broken, match="may wait for ever"):
        check(Cards(2, 2), first=0)


def test_the_papers_recent_use_taken_literally_ends_in_a_deadlock():
    way = deadlock.shortest("paper-recent-use", capacity=4, containers=4)
    assert way is not None
    assert "running: nobody" in way[-1]
    assert len(way) == 5


def test_the_papers_fifo_taken_literally_does_not():
    assert deadlock.shortest("paper-fifo", capacity=4, containers=4) is None
