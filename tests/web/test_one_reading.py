"""What a container's page, the report and the history tell of the same life is the same."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings

from tests.support.events import EventKind, append
from tests.support.machine import GIB, make_container, make_gpu
from tests.support.people import make_user, signed_in
from tests.support.tale import STEPS, Tale, stretches_of
from web.history import samples
from web.history.life import stretches
from web.history.reports import report
from web.models import Container, Gpu, State, UsageSample

pytestmark = pytest.mark.django_db
T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture
def container(ada, gpu):
    made = make_container(ada, "a", gpu, started_at=T0)
    Container.objects.update(created_at=T0, finished_at=T0 + 100 * SECOND, exit_code=0)
    made.refresh_from_db()
    return made


def life(container: Container) -> list[tuple[str, float]]:
    return [(part.state.value, part.seconds) for part in stretches(container)]


def test_a_wait_that_ends_with_a_rejection_has_ended(container, gpu):
    append(container, T0 + 10 * SECOND, EventKind.SUSPENDED, gpu, bytes=GIB)
    append(container, T0 + 40 * SECOND, EventKind.REJECTED, gpu, bytes=GIB, waited=30)
    assert life(container) == [("running", 10), ("suspended", 30), ("running", 60)]


def test_a_rejection_at_once_ends_nobodys_wait(container, gpu):
    append(container, T0 + 10 * SECOND, EventKind.SUSPENDED, gpu, bytes=GIB)
    append(container, T0 + 20 * SECOND, EventKind.REJECTED, gpu, bytes=9 * GIB)
    assert life(container) == [("running", 10), ("suspended", 90)]


def test_with_two_calls_waiting_it_is_suspended_until_the_last_resumes(container, gpu):
    for second, kind in (
        (10, EventKind.SUSPENDED),
        (20, EventKind.SUSPENDED),
        (30, EventKind.RESUMED),
        (60, EventKind.RESUMED),
    ):
        append(container, T0 + second * SECOND, kind, gpu, waited=1 if kind == EventKind.RESUMED else 0)
    assert life(container) == [("running", 10), ("suspended", 50), ("running", 40)]


def test_a_wait_that_nobody_asked_for_again_after_a_restart_has_ended(container, gpu):
    for _ in range(2):
        append(container, T0 + 10 * SECOND, EventKind.SUSPENDED, gpu)
    append(container, T0 + 60 * SECOND, EventKind.RESUMED, waited=50)
    assert life(container) == [("running", 10), ("suspended", 50), ("running", 40)]


def test_a_pause_within_a_wait_is_shown_as_a_pause(container, gpu):
    append(container, T0 + 10 * SECOND, EventKind.SUSPENDED, gpu)
    append(container, T0 + 20 * SECOND, EventKind.PAUSED)
    append(container, T0 + 30 * SECOND, EventKind.UNPAUSED)
    append(container, T0 + 40 * SECOND, EventKind.RESUMED, gpu, waited=30)
    expected = [("running", 10), ("suspended", 10), ("paused", 10), ("suspended", 10), ("running", 60)]
    assert life(container) == expected
    assert report(T0, T0 + 100 * SECOND).total.as_dict()["suspended_seconds"] == 30


def test_a_report_does_not_name_a_container_that_was_only_paused(container):
    append(container, T0 + 20 * SECOND, EventKind.PAUSED)
    append(container, T0 + 30 * SECOND, EventKind.UNPAUSED)
    assert report(T0, T0 + 100 * SECOND).rows == []


def test_the_page_shows_the_stretches(container, gpu, ada):
    append(container, T0 + 10 * SECOND, EventKind.SUSPENDED, gpu)
    append(container, T0 + 40 * SECOND, EventKind.REJECTED, gpu, waited=30)
    page = signed_in(ada).get(f"/containers/{container.pk}/")
    assert [(part["state"], part["seconds"]) for part in page.context["stretches"]] == life(container)


@st.composite
def tales(draw: st.DrawFn, gpus) -> Tale:
    """Any number of calls wait at a time, on one GPU or the other; the scheduler is restarted; it may never end."""
    tale = Tale(T0, gpus)
    tale.rest(draw(st.integers(0, 2)))
    tale.begin()
    for _ in range(draw(st.integers(0, 25))):
        tale.rest(draw(st.integers(0, 3)))
        draw(st.sampled_from(STEPS))(tale, draw(st.integers(0, len(gpus) - 1)), draw(st.integers(1, 3)) * GIB)
    tale.rest(draw(st.integers(0, 3)))
    if draw(st.booleans()):
        tale.end(killed=draw(st.booleans()), seen_after=draw(st.sampled_from([0, 0, 5])))
    return tale


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_page_report_and_history_tell_the_same_life(gpu, data):
    cards = [gpu, gpu.node.gpus.filter(index=1).first() or make_gpu(gpu.node, 1)]
    tale = data.draw(tales(cards))
    owner = make_user(f"owner-{Container.objects.count()}")
    container = make_container(owner, owner.get_username())
    tale.write(container)
    truth = tale.truth
    end = tale.at(len(truth))

    page = stretches(container)
    assert all(one.end == other.start and one.state != other.state for one, other in pairwise(page))
    known = [(part.state, min(part.end, end) - part.start) for part in page if part.start < end]
    assert known == [(state, seconds * SECOND) for state, seconds in stretches_of(truth)]
    if tale.ended is None:
        assert page[-1].state == container.state  # it goes on as it is

    whole = report(T0, end, owner=owner.get_username()).total
    history = UsageSample.objects.filter(container=container, gpu=gpu, at__lte=end)
    assert whole.suspended_microseconds == 10**6 * sum(each.waits for each in truth)
    assert whole.suspended_microseconds == 10**6 * (history.aggregate(all=Sum("suspended"))["all"] or 0)
    assert whole.byte_microseconds == 10**6 * sum(sum(each.used) for each in truth)

    for second in data.draw(st.sets(st.integers(0, len(truth) - 1), max_size=3)) if truth else ():
        here, there = tale.at(second), tale.at(second + 1)
        reported = report(here, there, owner=owner.get_username()).total
        shown = next(part.state for part in page if part.start <= here < part.end)
        held = sum(moment(card, here, container)["used"] for card in cards)
        waited = moment(gpu, there, container)["suspended"]  # a sample tells of the second before it
        assert reported.byte_microseconds == 10**6 * held
        assert reported.suspended_microseconds == 10**6 * waited
        assert shown in ((State.SUSPENDED, State.PAUSED) if waited else (State.CREATED, State.RUNNING, State.PAUSED))


def test_now_is_the_last_look_that_is_written_and_who_had_ended_by_it_is_not_there(container, gpu):
    """A look is written up to a second after the second it is of, and the next one a second later."""
    for second, its in ((0, container), (0, None), (1, None)):
        UsageSample.objects.create(at=T0 + second * SECOND, gpu=gpu, container=its, used=GIB, peak=GIB, granted=GIB)
    UsageSample.objects.create(
        at=T0 - 60 * SECOND, span=UsageSample.Span.MINUTE, gpu=gpu, container=container, used=GIB, peak=GIB, granted=GIB
    )
    there = samples.moment(gpu, T0 + timedelta(seconds=0.9))
    assert [row["id"] for row in there["containers"]] == [str(container.pk)]
    for seconds in (1.0, 3.1):
        found = samples.moment(gpu, T0 + timedelta(seconds=seconds))
        assert (found["at"], found["containers"]) == ((T0 + SECOND).timestamp(), [])


def moment(card: Gpu, at: datetime, container: Container) -> dict[str, Any]:
    """What the history page tells of this container at that time."""
    (found,) = [row for row in samples.moment(card, at)["containers"] if row["id"] == str(container.pk)]
    return found
