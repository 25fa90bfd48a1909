"""Planned launches, decided by pure functions: in any order of events, no bound is passed and nothing stays behind."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.people.heads import PATIENCE
from scheduler.core.planned.conditions import After, awaited, impossible
from scheduler.core.planned.order import Candidate, Queue, Shape, Started, fitting, rooms
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
from scheduler.core.state import Container, Gpu, Request, Reserve, State

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
            assert over(progress, gone, how, retries=retries, again_at=now) == progress  # told twice
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


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 12), st.integers(1, 2)), max_size=12))
def test_what_is_started_fits_together_with_whole_quotas_and_nothing_that_fits_is_left(wanted) -> None:
    queue, started, now = Queue(), dict[str, Started](), 50.0
    for number, (owner, gib, count) in enumerate(wanted):
        shape = Shape(gib * GIB, count)
        if not impossible_shape(STATE, shape):
            queue.put(Candidate(f"p{number}", owner, 0.0, shape, number=number))
    while start := queue.next_start(STATE, started, now):
        queue.note(start, now)
        queue.drop(start.candidate.id)
        started[start.candidate.id] = Started(
            start.candidate.owner, dict.fromkeys(start.gpus, start.candidate.shape.quota)
        )
    left = rooms(STATE, started)
    assert min(left.values()) >= 0
    assert not [each for each in queue.known.values() if fitting(STATE, each.shape, left)]


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (Shape(GIB, gpus=("gone",)), "GPU gone is not in this host any more."),
        (Shape(GIB, 3), "It needs 3 GPUs; this host has 2."),
        (Shape(11 * GIB), "11 GiB can ever be had on no GPU here: the most is 10 GiB."),
        (Shape(9 * GIB, 2), "9 GiB can ever be had on 1 of 2 GPUs."),
    ],
)
def test_what_no_waiting_makes_possible_is_told_with_the_figures(shape, why) -> None:
    assert (
        impossible_shape(State(gpus={"A": card(), "B": card("B", 10 * GIB if shape.count != 2 else GIB)}), shape) == why
    )


def test_one_decision_looks_at_so_many_shapes_and_no_more(monkeypatch) -> None:
    monkeypatch.setattr("scheduler.core.planned.order.TRIES", 2)
    queue = Queue()
    for number, gib in enumerate((9, 8, 1)):
        queue.put(Candidate(f"p{number}", "x", 0.0, Shape(gib * GIB), number=number))
    full = {"r": Started("y", {"A": 4 * GIB, "B": 4 * GIB})}
    assert queue.next_start(STATE, full, 1.0) is None
    queue.drop("p0")
    assert queue.next_start(STATE, full, 1.0) is not None


def test_large_one_that_has_waited_long_is_passed_no_more() -> None:
    held = {"r": Started("x", {"A": 4 * GIB}), "s": Started("x", {"B": 8 * GIB})}
    queue = Queue()
    queue.put(Candidate("large", "x", 0.0, Shape(8 * GIB)))
    queue.put(Candidate("small", "y", 10.0, Shape(5 * GIB)))
    soon, late = (queue.next_start(STATE, held, now) for now in (PATIENCE - 1, PATIENCE + 1))
    assert soon is not None
    assert soon.candidate.id == "small"
    assert late is None


def test_what_is_reserved_for_others_is_no_room_to_start_in() -> None:
    reserve = Reserve("r", "A", 6 * GIB, frozenset(["x"]), 0.0, 900.0, is_kept=True)
    state = State(gpus={"A": card()}, reserves=(reserve,))
    free = card().capacity - reserve.bytes
    for owner, gib, starts in (("y", free, True), ("y", free + GIB, False), ("x", free + GIB, True)):
        queue = Queue()
        queue.put(Candidate("p", owner, 0.0, Shape(gib)))
        assert (queue.next_start(state, {}, 1.0) is not None) is starts, (owner, gib)
    # What was promised to its people is taken from what is reserved, not once more from the card.
    assert rooms(state, {"s": Started("x", {"A": reserve.bytes})}, "y") == {"A": free}


def test_nothing_starts_where_running_containers_wait_for_memory() -> None:
    waits = Container("w", {"A": 9 * GIB}, "x")
    state = State(
        gpus={"A": card(members=("w",))},
        containers={"w": waits},
        waiting=(Request(1, 1, "w", "A", GIB, 0.0, suspended=True),),
    )
    queue = Queue()
    queue.put(Candidate("p", "x", 0.0, Shape(GIB)))
    assert queue.next_start(state, {}, 1.0) is None
    assert queue.next_start(State(gpus={"A": card()}), {}, 1.0) is not None


def test_people_go_in_turn_and_ones_own_by_priority_then_age() -> None:
    queue, started = Queue(), dict[str, Started]()
    for number in range(3):
        queue.put(Candidate(f"x{number}", "x", 0.0, Shape(GIB), number=number))
    queue.put(Candidate("urgent", "x", 0.0, Shape(GIB), priority=50, number=9))
    queue.put(Candidate("y0", "y", 5.0, Shape(GIB)))
    order = []
    while start := queue.next_start(STATE, started, 100.0 + len(order)):
        order.append(start.candidate.id)
        queue.note(start, 100.0 + len(order))
        queue.drop(start.candidate.id)
        started[start.candidate.id] = Started(start.candidate.owner, dict.fromkeys(start.gpus, GIB))
    assert order == ["urgent", "y0", "x0", "x1", "x2"]


def reserved_for(person: str, amount: int, gpu: str = "A", **fields: object) -> Reserve:
    return Reserve("r", gpu, amount, frozenset({person}), 0.0, 1e6, seen=0.0, **fields)  # type: ignore[arg-type]


def test_what_is_reserved_is_free_for_its_people_alone_and_promises_draw_from_it_once() -> None:
    state = State(gpus={"A": card()}, reserves=(reserved_for("ada", 6 * GIB, is_kept=True),))
    queue = Queue()
    queue.put(Candidate("bobs", "bob", 0.0, Shape(5 * GIB)))
    assert queue.next_start(state, {}, 1.0) is None
    queue.put(Candidate("adas", "ada", 0.0, Shape(10 * GIB)))
    assert queue.next_start(state, {}, 1.0) is not None
    started = {"s": Started("ada", {"A": 4 * GIB})}
    assert rooms(state, started, "bob") == {"A": 4 * GIB}  # 4 of the 6 are promised to her, and are no others' twice
    assert rooms(state, started, "ada") == {"A": 6 * GIB}


def test_what_is_reserved_for_somebody_starts_also_where_others_wait() -> None:
    state = State(
        gpus={"A": card(members=("w",))},
        containers={"w": Container("w", {"A": 9 * GIB}, "bob")},
        waiting=(Request(1, 1, "w", "A", 5 * GIB, 0.0, suspended=True),),
        reserves=(reserved_for("ada", 6 * GIB, is_kept=True),),
    )
    assert rooms(state, {}, "ada") == {"A": 6 * GIB}
    assert rooms(state, {}, "bob") == {"A": -1}


def test_what_is_reserved_for_somebody_starts_though_one_of_others_that_is_due_keeps_the_card() -> None:
    """The other one waits for the reservation's end: its people need not wait for that."""
    state = State(gpus={"A": card()}, reserves=(reserved_for("ada", 6 * GIB, is_kept=True),))
    queue = Queue()
    queue.put(Candidate("bobs", "bob", 0.0, Shape(5 * GIB)))
    queue.put(Candidate("adas", "ada", 1.0, Shape(6 * GIB)))
    queue.put(Candidate("eves", "eve", 2.0, Shape(GIB)))
    start = queue.next_start(state, {}, PATIENCE + 5)
    assert start is not None
    assert start.candidate.id == "adas"
    queue.drop("adas")
    assert queue.next_start(state, {"adas": Started("ada", {"A": 6 * GIB})}, PATIENCE + 5) is None


def test_what_is_reserved_for_somebody_is_not_promised_away_before_it_begins() -> None:
    """One that was started just before the begin, and has asked for nothing yet, waits; the people do not."""
    state = State(gpus={"A": card()}, reserves=(reserved_for("ada", 6 * GIB, is_kept=True),))
    started = {"bobs": Started("bob", {"A": 8 * GIB})}
    assert rooms(state, started, "ada") == {"A": 6 * GIB}
    assert rooms(state, started, "bob") == {"A": -4 * GIB}
    assert rooms(state, started | {"adas": Started("ada", {"A": 2 * GIB})}, "ada") == {"A": 4 * GIB}


def test_a_card_that_is_about_to_be_reserved_is_left_if_another_fits() -> None:
    state = replace(STATE, reserves=(reserved_for("ada", 6 * GIB),))
    assert fitting(state, Shape(5 * GIB), rooms(state, {}, "bob"), "bob") == ("B",)
    assert fitting(state, Shape(5 * GIB, gpus=("A",)), rooms(state, {}, "bob"), "bob") == ("A",)
    assert fitting(state, Shape(5 * GIB), rooms(state, {}, "ada"), "ada") == ("A",)
    later = replace(STATE, reserves=(replace(reserved_for("ada", 6 * GIB), begins=500.0),))
    for lasts, card_ in ((400.0, "A"), (600.0, "B")):
        assert fitting(later, Shape(5 * GIB, lasts=lasts), rooms(later, {}, "bob"), "bob") == (card_,)


def test_nothing_starts_on_a_card_that_is_out_of_service_nor_ends_for_that() -> None:
    state = State(gpus={"A": card(drained=True), "B": card("B", members=())})
    queue = Queue()
    queue.put(Candidate("one", "x", 0.0, Shape(GIB)))
    queue.put(Candidate("both", "y", 0.0, Shape(GIB, 2)))
    begins = queue.next_start(state, {}, 1.0)
    assert begins is not None
    assert (begins.candidate.id, begins.gpus) == ("one", ("B",))
    queue.drop("one")
    assert queue.next_start(state, {}, 1.0) is None
    assert impossible_shape(state, Shape(GIB, 2)) == ""
