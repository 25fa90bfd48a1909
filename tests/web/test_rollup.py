"""Samples get coarser with age, and nothing is lost on the way."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.support.machine import make_container
from web.history import rollup
from web.history import samples as history
from web.history.rollup import roll_up
from web.models import UsageHour, UsageSample

pytestmark = pytest.mark.django_db
T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = (timedelta(seconds=span) for span in UsageSample.Span.values)


@pytest.fixture
def samples(ada, gpu):
    """Three hours, a sample each second: used counts up each minute, and second 30 of each is a spike."""
    container = make_container(ada, "a", gpu)
    rows = []
    for second in range(3 * 3600):
        minute = second // 60
        peak = 10_000 if second % 60 == 30 else minute
        rows.append(
            UsageSample(at=T0 + second * SECOND, gpu=gpu, container=container, used=minute, peak=peak,
                        granted=2 * minute, suspended=0.5, utilisation=50, had=0.25, due=0.3,
                        cpus_used=1.5 if minute % 2 else None, memory_used=minute << 20)
        )  # fmt: skip
    rows.append(UsageSample(at=T0 + 5 * SECOND, gpu=gpu, container=None, used=7, peak=7))
    UsageSample.objects.bulk_create(rows, batch_size=1000)
    return container


def count(span: int) -> int:
    return UsageSample.objects.filter(span=span).count()


def test_minutes_and_hours_are_made_and_old_seconds_go(samples):
    now = T0 + 3 * HOUR + 30 * SECOND
    roll_up(now)
    assert (count(60), count(3600)) == (181, 4)
    minute = UsageSample.objects.get(span=60, at=T0 + 90 * MINUTE)
    assert (minute.used, minute.peak, minute.granted, minute.suspended, minute.utilisation) == (90, 10_000, 180, 30, 50)
    assert (minute.had, round(minute.due, 6), minute.held_back) == (15, 18, None)
    assert (minute.cpus_used, minute.memory_used) == (None, 90 << 20)  # of minute 90 nobody knew the processors
    hour = UsageSample.objects.get(span=3600, at=T0 + HOUR)
    assert (hour.used, hour.peak, hour.suspended) == (round(sum(range(60, 120)) / 60), 10_000, 1800)
    assert hour.cpus_used == 1.5
    assert UsageSample.objects.filter(span=1).order_by("at").first().at == now - HOUR


def test_running_it_again_changes_nothing(samples):
    now = T0 + 3 * HOUR
    roll_up(now)
    before = list(UsageSample.objects.order_by("pk").values())
    assert roll_up(now) == 0
    assert list(UsageSample.objects.order_by("pk").values()) == before


def test_a_minute_that_is_not_over_is_not_made(samples):
    roll_up(T0 + 90 * SECOND)
    assert list(UsageSample.objects.filter(span=60, container=samples).values_list("at", flat=True)) == [T0]
    assert count(3600) == 0
    assert count(1) == 3 * 3600 + 1


def test_running_it_often_gives_the_same_as_once(samples):
    for minute in range(0, 181, 7):
        roll_up(T0 + minute * MINUTE)
    roll_up(T0 + 180 * MINUTE)
    minutes = UsageSample.objects.filter(span=60, container=samples).order_by("at")
    assert list(minutes.values_list("at", "used")) == [(T0 + minute * MINUTE, minute) for minute in range(180)]
    hours = UsageSample.objects.filter(span=3600, container=samples).order_by("at")
    assert list(hours.values_list("at", "suspended")) == [(T0 + hour * HOUR, 1800) for hour in range(3)]


def test_nothing_goes_that_was_not_rolled_up(samples, monkeypatch):
    monkeypatch.setattr(rollup, "SECONDS_KEPT", 0)
    monkeypatch.setattr(rollup, "MINUTES_KEPT", 0)
    roll_up(T0 + HOUR + 90 * SECOND)
    assert UsageSample.objects.filter(span=1).order_by("at").first().at == T0 + HOUR + MINUTE
    assert UsageSample.objects.filter(span=60).order_by("at").first().at == T0 + HOUR


def test_a_pause_of_the_appliance_leaves_a_gap_and_no_harm(samples, gpu):
    roll_up(T0 + 3 * HOUR)
    later = T0 + timedelta(days=3)
    UsageSample.objects.create(at=later, gpu=gpu, container=samples, used=60, peak=60)
    roll_up(later + 2 * HOUR)
    assert UsageSample.objects.get(span=3600, at=later).used == 1


def test_two_minutes_of_an_hour_are_not_reported_as_a_whole_hour(samples, gpu):
    """The first start was two minutes before the hour was over: 0.1 GiB × hours stood as 0.9 on the fairness page."""
    begin = T0 + timedelta(days=3, minutes=58)
    UsageSample.objects.bulk_create(
        UsageSample(at=begin + second * SECOND, gpu=gpu, container=container, used=6000, peak=6000)
        for second in range(120)
        for container in (samples, None)
    )
    roll_up(begin + HOUR)
    hours = UsageSample.objects.filter(span=3600, at=begin - 58 * MINUTE)
    assert [(hour.used, hour.peak) for hour in hours] == [(200, 6000)] * 2


@pytest.mark.parametrize(
    ("kept", "hours", "spans"),
    [
        ((3600, 7 * 86400), 0.5, {1}),
        ((3600, 7 * 86400), 1.5, {1, 60}),
        ((3600, 7 * 86400), 3, {60}),
        ((60, 3600), 0.5, {1, 60}),
        ((60, 3600), 2, {1, 60, 3600}),
        ((60, 3600), 3, {60, 3600}),
    ],
)
def test_every_second_of_a_time_is_read_once_however_long_samples_are_kept(samples, monkeypatch, kept, hours, spans):
    """What had become coarser than was wanted was not read: the chart of 90 minutes began in the middle."""
    monkeypatch.setattr(rollup, "SECONDS_KEPT", kept[0])
    monkeypatch.setattr(rollup, "MINUTES_KEPT", kept[1])
    end = T0 + 3 * HOUR
    roll_up(end)
    found = history.samples_within(end - hours * HOUR, end, container=samples).order_by("at")
    begun = [sample.at for sample in found]
    assert begun[0] == end - hours * HOUR
    assert [sample.at + sample.span * SECOND for sample in found] == [*begun[1:], end]
    assert {sample.span for sample in found} == spans


def test_who_held_for_a_part_of_a_minute_held_that_part_of_it(ada, gpu):
    """One after the other, each the whole card: together they never held more than it has."""
    first, second = (make_container(ada, name, gpu) for name in "ab")
    rows = []
    for moment in range(3600):
        who = first if moment < 15 else second if moment < 45 else None
        for container in {None, who}:
            held = 1200 if who else 0
            rows.append(UsageSample(at=T0 + moment * SECOND, gpu=gpu, container=container, used=held, peak=held))
    UsageSample.objects.bulk_create(rows)
    roll_up(T0 + HOUR)
    for span, parts in ((60, 4), (3600, 240)):
        used = {
            sample.container: (sample.used, sample.peak)
            for sample in UsageSample.objects.filter(span=span, at=T0).select_related("container")
        }
        whole = 1200 // parts
        assert used == {first: (whole, 1200), second: (2 * whole, 1200), None: (3 * whole, 1200)}


def test_a_point_of_the_replay_is_one_look_at_the_card_also_where_there_are_no_minutes_yet(ada, gpu):
    """One had ended before the other began: at no point of the last steps do they hold side by side."""
    first, second = (make_container(ada, name, gpu) for name in "ab")
    rows = []
    for moment in range(12 * 60):
        who = first if moment < 400 else second
        rows += [
            UsageSample(at=T0 + moment * SECOND, gpu=gpu, container=container, used=9, peak=9)
            for container in (None, who)
        ]
    UsageSample.objects.bulk_create(rows)
    roll_up(T0 + 4 * MINUTE)
    day = history.holders(gpu, T0 - 6 * HOUR, T0 + 12 * MINUTE, points=6 * 12)
    held = {row["name"]: row["values"][-3:] for row in day["containers"]}
    assert held == {"a": [9, 9, 0], "b": [0, 0, 9]}


@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases tell their plans in other words")
def test_where_to_go_on_is_found_by_steps_into_the_index_and_not_by_sorting_what_there_is(samples, gpu):
    roll_up(T0 + 3 * HOUR)
    with CaptureQueriesContext(connection) as asked:
        roll_up(T0 + 3 * HOUR, gpu.node_id)
    looks = [each["sql"] for each in asked if each["sql"].startswith("SELECT") and "web_usagesample" in each["sql"]]
    assert looks
    with connection.cursor() as cursor:
        for look in looks:
            cursor.execute(f"EXPLAIN QUERY PLAN {look}")
            plan = " / ".join(step[-1] for step in cursor.fetchall())
            assert "SCAN web_usagesample" not in plan, (look, plan)
            assert "TEMP B-TREE FOR ORDER BY" not in plan, (look, plan)


def test_usage_of_a_month_ago_is_added_up_to_days_and_its_sum_stays(samples, gpu):
    now = T0 + 40 * 24 * HOUR
    first = int(T0.timestamp()) // 3600  # noon
    ages = [*range(30), 24 * 9, 24 * 39]
    UsageHour.objects.bulk_create(
        UsageHour(gpu=gpu, person=person, hour=first + age, had=had, due=1.0)
        for age in ages for person, had in (("ada", 2.0), ("bob", 0.5))
    )  # fmt: skip
    roll_up(now)
    found = UsageHour.objects.filter(person="ada").order_by("hour").values_list("hour", "had", "due")
    noon = first - 12  # the day's first hour
    whole = [(noon, 24.0, 12.0), (noon + 24, 36.0, 18.0)]
    assert list(found) == [*whole, (first + 24 * 9, 2.0, 1.0), (first + 24 * 39, 2.0, 1.0)]
    UsageHour.objects.create(gpu=gpu, person="ada", hour=first + 1, had=1.0, due=1.0)  # it came late
    UsageSample.objects.create(at=now + 30 * SECOND, gpu=gpu, used=1, peak=1)
    roll_up(now + 2 * HOUR)
    assert found.all().first() == (noon, 25.0, 13.0)
    assert UsageHour.objects.filter(person="bob").count() == 4
