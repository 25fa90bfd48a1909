"""Planned launches, decided by pure functions: in any order of events, no bound is passed and nothing stays behind."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core import safety
from scheduler.core.arbiter import handle
from scheduler.core.effects import Effect, Granted, Promised, Refused, TakeBack
from scheduler.core.events import (
    ContainerAdded,
    ContainerEnded,
    Event,
    GpuDrained,
    Needed,
    Returned,
    SessionOpened,
    StandIn,
)  # fmt: skip
from scheduler.core.invariants import violations
from scheduler.core.people.heads import PATIENCE
from scheduler.core.planned.conditions import After, awaited, impossible
from scheduler.core.planned.order import Candidate, Queue, Shape, fitting
from scheduler.core.planned.order import impossible as impossible_shape
from scheduler.core.planned.progress import (
    Attempt,
    End,
    Progress,
    as_json,
    begun,
    from_json,
    next_run,
    outcome,
    over,
)
from scheduler.core.state import Gpu, Reserve, State

GIB = 1 << 30
ENDS = [End.OK, End.FAILED, End.KILLED]


def card(uuid: str = "A", capacity: int = 10 * GIB, **more: object) -> Gpu:
    return Gpu(uuid, capacity, capacity, **more)  # type: ignore[arg-type]


STATE = State(gpus={"A": card(), "B": card("B")})


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 2))
def test_sweep_never_passes_at_once_starts_no_attempt_twice_and_ends(seed, count, retries) -> None:
    chance = Random(seed)
    progress, at_once, now, made = Progress(), chance.randint(1, 4), 0.0, list[tuple[int, int]]()
    while (end := outcome(progress, count)) is None:
        now += 1
        run, running = next_run(progress, count, at_once, now), sorted(progress.running.items(), key=str)
        if run is not None and chance.random() < 0.5:
            assert len(running) < at_once
            made.append(run)
            progress = begun(progress, run[0], Attempt(f"c{len(made)}", run[1], ("A",)))
        elif running and chance.random() < 0.5:
            gone, how = chance.choice(running)[1].container, chance.choice(ENDS)
            progress = over(progress, gone, how, retries=retries, again_at=now + 5)
            assert over(progress, gone, how, retries=retries, again_at=now) == progress  # reported twice
        elif chance.random() < 0.2:
            at_once = chance.randint(1, 4)
        progress = from_json(as_json(progress))
    assert len(set(made)) == len(made)
    assert {run for run, _ in made} == set(range(1, count + 1))
    assert all(number <= retries + 1 for _, number in made)
    assert (end is End.OK) == (progress.failed == 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ok", "any", "failed"]))), st.data())
def test_what_waits_for_ends_begins_once_all_have_come_or_never(after, data) -> None:
    parents = [After(name, name, ended) for name, ended in after]
    ends: dict[str, End] = {}
    for name in data.draw(st.permutations("abc")):
        ends[name] = data.draw(st.sampled_from(list(End)))
        if why := impossible(parents, ends):
            assert "It was to begin after" in why
            return
    assert awaited(parents, ends) == []


class Host:
    """Cards with nothing on them, and the planned launches that stand in the core's queue."""

    def __init__(self, state: State = STATE) -> None:
        self.state, self.queue, self.begun = state, Queue(), list[str]()

    def do(self, *events: Event) -> tuple[Effect, ...]:
        self.state, effects = handle(self.state, *events)
        assert violations(self.state) == []
        for each in effects:
            if isinstance(each, TakeBack):
                effects += self.do(Returned(self.state.now, each.gpu, {}, all=True))
        return effects

    def plan(self, id_: str, owner: str, gib: int, since: float = 0.0, **shape: Any) -> None:
        number, priority = len(self.queue.known), shape.pop("priority", 0)
        self.queue.put(Candidate(id_, owner, since, Shape(gib * GIB, **shape), priority, number, id_))

    def look(self, now: float) -> list[str]:
        """Those that begin now: their containers are there, and have nothing yet."""
        found = list[str]()
        while True:
            for event in self.queue.steps(lambda: self.state, now):
                self.do(event)
            ready = self.queue.promised(self.state)
            if not ready:
                self.begun += found
                return found
            for each, gpus in ready:
                self.queue.drop(each.id)
                self.do(ContainerAdded(now, each.id, dict.fromkeys(gpus, each.shape.quota), each.owner))
                found.append(each.id)

    def launch(self, session: int, name: str, gpu: str, gib: int, owner: str, now: float) -> tuple[Effect, ...]:
        """Of the moment; it asks for all that it may have."""
        self.do(ContainerAdded(now, name, {gpu: gib * GIB}, owner), SessionOpened(now, session, name))
        return self.do(Needed(now, session, 1, gpu, gib * GIB))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 12), st.integers(1, 2)), max_size=12))
def test_what_is_started_fits_together_with_whole_quotas_and_nothing_that_fits_is_left(wanted) -> None:
    host = Host()
    for number, (owner, gib, count) in enumerate(wanted):
        host.plan(f"p{number}", owner, gib, count=count)
    host.look(50.0)
    free = {gpu: safety.free(host.state, gpu) for gpu in host.state.gpus}
    assert min(free.values()) >= 0
    left = [each for each in host.queue.known.values() if not impossible_shape(host.state, each.shape)]
    assert not [each for each in left if fitting(host.state, each.shape, free)]


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (Shape(GIB, gpus=("gone",)), "GPU gone is not in this host any more."),
        (Shape(GIB, 3), "It needs 3 GPUs; this host has 2."),
        (Shape(11 * GIB), "11 GiB can ever be had on no GPU here: the most is 10 GiB."),
        (Shape(9 * GIB, 2), "9 GiB can ever be had on 1 of 2 GPUs."),
    ],
)
def test_what_no_waiting_makes_possible_is_reported_with_the_figures(shape, why) -> None:
    assert (
        impossible_shape(State(gpus={"A": card(), "B": card("B", 10 * GIB if shape.count != 2 else GIB)}), shape) == why
    )


def test_planned_launch_is_passed_by_no_stream_of_others_and_begins_in_what_it_was_granted() -> None:
    """Before it stood in the queue, small launches at once kept it waiting for ever."""
    host, now = Host(State(gpus={"A": card()})), 0.0
    host.launch(1, "1", "A", 5, "bob", now)
    host.plan("large", "ada", 8)
    for number in range(2, 40):
        now += 200
        host.launch(number, str(number), "A", 5, "eve", now)
        if host.look(now):
            break
        oldest = next(name for name, each in host.state.containers.items() if each.leased)
        host.do(ContainerEnded(now + 100, oldest))
    assert host.begun == ["large"]
    assert host.state.containers["large"].guaranteed  # though it has nothing yet
    assert now <= PATIENCE + 600
    host.do(SessionOpened(now, 99, "large"))
    assert any(isinstance(each, Granted) for each in host.do(Needed(now, 99, 1, "A", GIB)))
    assert not host.state.containers["large"].guaranteed  # from now on it is a container like any other


def test_stand_in_holds_nothing_and_is_gone_when_its_launch_is() -> None:
    host = Host(State(gpus={"A": card()}))
    host.launch(1, "1", "A", 6, "bob", 0.0)
    host.plan("p", "ada", 6)
    assert host.look(1.0) == []
    assert [call.container for call in host.state.waiting] == ["p"]
    assert host.state.gpus["A"].held == 6 * GIB
    host.queue.drop("p")
    host.look(2.0)
    assert (host.state.waiting, list(host.state.containers)) == ((), ["1"])


def test_stand_in_goes_to_the_card_that_comes_free_and_to_another_when_its_own_is_out_of_service() -> None:
    host = Host()
    for number, gpu in enumerate("AB", 1):
        host.launch(number, gpu, gpu, 10, "bob", 0.0)
    host.plan("p", "ada", 6)
    host.look(1.0)
    (stands,) = host.state.containers["p"].quota
    host.do(GpuDrained(2.0, stands, True))
    host.look(2.0)
    (other,) = host.state.containers["p"].quota
    assert other != stands
    host.do(GpuDrained(3.0, stands, False), ContainerEnded(3.0, stands))
    assert host.look(3.0) == ["p"]
    assert list(host.state.containers["p"].quota) == [stands]


def test_of_each_person_so_many_stand_in_the_queue_and_of_each_shape_one(monkeypatch) -> None:
    monkeypatch.setattr("scheduler.core.planned.order.MOST", 4)
    host = Host(State(gpus={"A": card()}))
    host.launch(1, "1", "A", 10, "bob", 0.0)
    for owner in "xy":
        for number, gib in enumerate((2, 2, 3, 4)):
            host.plan(f"{owner}{number}", owner, gib)
    host.look(1.0)
    assert {call.container for call in host.state.waiting} == {"x0", "x2", "y0", "y2"}


def test_what_could_not_begin_before_a_reservation_ends_stands_in_nobodys_way() -> None:
    host = Host(State(gpus={"A": card()}, reserves=(reserved_for("x", 6 * GIB, is_kept=True),)))
    host.plan("large", "y", 5)
    assert host.look(PATIENCE + 5) == []
    assert host.state.waiting == ()
    host.plan("his", "x", 10)
    host.plan("small", "z", 4)
    assert host.look(PATIENCE + 6) == ["his"]


def test_one_waits_for_memory_that_was_promised_to_another_planned_launch() -> None:
    host = Host(State(gpus={"A": card()}))
    host.plan("a", "x", 6)
    assert host.look(1.0) == ["a"]
    assert Promised("b") not in host.do(StandIn(2.0, "b", {"A": 5 * GIB}, "y", 0, 0.0))
    assert not any(isinstance(each, Granted) for each in host.launch(1, "c", "A", 5, "z", 3.0))
    host.do(ContainerEnded(4.0, "a"))
    assert host.state.containers["b"].guaranteed


def test_people_go_in_turn_and_ones_own_by_priority_then_age() -> None:
    host = Host(State(gpus={"A": card(capacity=GIB)}))
    host.launch(1, "1", "A", 1, "bob", 0.0)
    for number in range(3):
        host.plan(f"x{number}", "x", 1)
    host.plan("urgent", "x", 1, priority=50)
    host.plan("y0", "y", 1, since=5.0)
    holder, now = "1", 0.0
    while host.queue.known:
        now += PATIENCE + 10
        host.look(now)
        host.do(ContainerEnded(now, holder))
        (holder,) = host.look(now)
    assert host.begun[:2] in (["urgent", "y0"], ["y0", "urgent"])
    assert host.begun[2:] == ["x0", "x1", "x2"]


def reserved_for(person: str, amount: int, gpu: str = "A", **fields: object) -> Reserve:
    return Reserve("r", gpu, amount, frozenset({person}), 0.0, 1e6, seen=0.0, **fields)  # type: ignore[arg-type]


def test_what_is_reserved_for_somebody_begins_also_where_others_wait() -> None:
    host = Host(State(gpus={"A": card()}, reserves=(reserved_for("ada", 6 * GIB, is_kept=True),)))
    host.launch(1, "w", "A", 5, "bob", 0.0)
    host.plan("p", "ada", 6)
    assert host.look(PATIENCE + 5) == ["p"]


def of_two_cards(policy: str, *reserves: Reserve) -> Host:
    """A planned launch waits for two cards, of which B has a holder of 6 GiB."""
    host = Host(replace(STATE, policy=policy, reserves=reserves))
    host.launch(1, "holder", "B", 6, "bob", 0.0)
    host.plan("both", "ada", 8, count=2)
    assert host.look(1.0) == []
    return host


def test_one_of_two_cards_waits_on_each_of_them_by_its_order() -> None:
    host = of_two_cards("fifo")
    assert not any(isinstance(each, Granted) for each in host.launch(2, "later", "B", 4, "eve", 2.0))
    host.do(ContainerEnded(3.0, "holder"))
    assert host.look(3.0) == ["both"]


def test_no_stream_of_guaranteed_launches_on_its_second_card_passes_it() -> None:
    host = of_two_cards("fair")
    assert any(isinstance(each, Refused) for each in
               host.do(ContainerAdded(2.0, "later", {"B": 2 * GIB}, "eve", guaranteed=True)))  # fmt: skip


def test_what_is_reserved_on_one_of_its_cards_lets_it_pass_nobody_on_the_other() -> None:
    host = of_two_cards("fifo", reserved_for("ada", 10 * GIB, is_kept=True))
    host.queue.drop("both")
    host.look(2.0)
    host.launch(2, "earlier", "B", 8, "bob", 3.0)
    host.plan("both", "ada", 8, since=4.0, count=2)
    assert host.look(4.0) == []
    assert any(each.container == "earlier" for each in host.do(ContainerEnded(5.0, "holder"))
               if isinstance(each, Granted))  # fmt: skip
    assert host.look(5.0) == []
    host.do(ContainerEnded(6.0, "earlier"))
    assert host.look(6.0) == ["both"]


def test_a_card_that_is_about_to_be_reserved_is_left_if_another_fits() -> None:
    state = replace(STATE, reserves=(reserved_for("ada", 6 * GIB),))
    free = dict.fromkeys("AB", 10 * GIB)
    assert fitting(state, Shape(5 * GIB), free, "bob") == ("B",)
    assert fitting(state, Shape(5 * GIB, gpus=("A",)), free, "bob") == ("A",)
    assert fitting(state, Shape(5 * GIB), free, "ada") == ("A",)
    later = replace(STATE, reserves=(replace(reserved_for("ada", 6 * GIB), begins=500.0),))
    for lasts, card_ in ((400.0, "A"), (600.0, "B")):
        assert fitting(later, Shape(5 * GIB, lasts=lasts), free, "bob") == (card_,)


def test_nothing_starts_on_a_card_that_is_out_of_service_nor_ends_for_that() -> None:
    host = Host(State(gpus={"A": card(drained=True), "B": card("B", members=())}))
    host.plan("one", "x", 1)
    host.plan("both", "y", 1, count=2)
    assert host.look(1.0) == ["one"]
    assert host.state.waiting == ()
    assert impossible_shape(host.state, Shape(GIB, 2)) == ""
