"""The audit report: its sums are those of the raw events."""

import asyncio
import csv
import io
import itertools
import random
import re
from datetime import UTC, date, datetime, timedelta

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from tests.support.events import EventKind, append, recomputed
from tests.support.machine import GIB, make_container, make_gpu
from tests.support.people import make_user, signed_in
from web.history import reports
from web.history.reports import report
from web.models import Container, Node, UsageSample
from web.notifying import monthly
from web.pages import reporting
from web.services import nodes

pytestmark = pytest.mark.django_db
T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def made(container: Container, at: datetime = T0) -> Container:
    Container.objects.filter(pk=container.pk).update(created_at=at)
    return container


@pytest.fixture
def trace(ada, gpu):
    """ada holds 2 GiB for an hour, then 1 GiB for two; waits twice for 10 minutes, and is refused once."""
    container = made(make_container(ada, "a", gpu, image="torch"))
    minute = HOUR / 60
    append(container, T0, EventKind.STARTED)
    append(container, T0, EventKind.ACCEPTED, gpu, bytes=2 * GIB, used_after=2 * GIB)
    append(container, T0 + 5 * minute, EventKind.SUSPENDED, gpu, bytes=GIB, used_after=2 * GIB)
    append(container, T0 + 15 * minute, EventKind.RESUMED, gpu, bytes=0, used_after=2 * GIB, waited=600)
    append(container, T0 + 20 * minute, EventKind.SUSPENDED, gpu, bytes=GIB, used_after=2 * GIB)
    append(container, T0 + 30 * minute, EventKind.REJECTED, gpu, bytes=GIB, used_after=2 * GIB, waited=600)
    append(container, T0 + HOUR, EventKind.FREED, gpu, bytes=GIB, used_after=GIB)
    append(container, T0 + 3 * HOUR, EventKind.ENDED)
    Container.objects.filter(pk=container.pk).update(finished_at=T0 + 3 * HOUR)
    return container


def test_what_was_held_waited_for_and_refused(trace, settings):
    settings.GPUSHARE_PRICE, settings.GPUSHARE_GPU_PRICE = 0.5, 3.0
    (row,) = report(T0, T0 + 4 * HOUR).rows
    assert row.as_dict() == {
        "group": "ada", "containers": 1, "vram_gib_hours": 4.0, "gpu_hours": None, "peak": 2 * GIB,
        "suspended_seconds": 1200.0, "wait_mean": 600.0, "wait_p95": 600.0, "had_gib_hours": None,
        "due_gib_hours": None, "due_gpu_hours": None, "rejects": 1, "vram_cost": 2.0, "gpu_cost": 0.0, "cost": 2.0,
    }  # fmt: skip


def test_nobody_is_charged_for_what_a_node_tells_of_after_its_removal_by_force(ada, gpu, monkeypatch):
    """It was away, its programs went on, and its scheduler brings what happened when it is back."""
    container = made(make_container(ada, "lost", gpu, node=gpu.node, started_at=T0))
    append(container, T0, EventKind.ACCEPTED, gpu, bytes=GIB, used_after=GIB)
    Node.objects.update(seen_at=None)
    with monkeypatch.context() as then:
        then.setattr(timezone, "now", lambda: T0 + HOUR)
        nodes.expel("root", gpu.node.name, force=True)
    append(container, T0 + 2 * HOUR, EventKind.ACCEPTED, gpu, bytes=GIB, used_after=2 * GIB)
    append(container, T0 + 4 * HOUR, EventKind.FREED, gpu, bytes=2 * GIB, used_after=0)
    (row,) = report(T0, T0 + 5 * HOUR).rows
    assert row.as_dict()["vram_gib_hours"] == 1.0


def test_hours_of_computing_and_what_they_cost(trace, ada, gpu, node, settings):
    """Of all its GPUs, by the samples that there are: seconds lately, minutes before."""
    settings.GPUSHARE_PRICE, settings.GPUSHARE_GPU_PRICE = 0.5, 3.0
    second, minute = make_gpu(node, 1), timedelta(minutes=1)
    other = made(make_container(make_user("bob"), "b", gpu))
    UsageSample.objects.bulk_create(
        UsageSample(at=at, span=span, gpu=card, container=container, used=1, peak=1, had=had)
        for container, card, at, span, had in [
            (trace, gpu, T0 + minute, 60, 30.0),
            (trace, second, T0 + minute, 60, 60.0),
            (trace, gpu, T0 + 2 * HOUR, 60, None),  # nobody could tell
            (other, gpu, T0 + minute, 60, 18.0),
            (other, gpu, T0 + 13 * HOUR, 60, 17.5),  # the next day
            (other, gpu, T0 + 13 * HOUR + minute, 1, 0.5),  # of which no minute is over yet
            (None, gpu, T0 + minute, 60, None),
        ]
    )
    found = report(T0, T0 + 24 * HOUR)
    assert {row.group: row.gpu_seconds for row in found.rows} == {"ada": 90.0, "bob": 36.0}
    assert found.total.gpu_seconds == 126.0
    by_day = report(T0, T0 + 24 * HOUR, "day").rows
    assert [(row.group, row.gpu_seconds, len(row.containers)) for row in by_day] == [
        ("2026-11-20", 108.0, 2), ("2026-11-21", 18.0, 1),
    ]  # fmt: skip
    bobs = report(T0, T0 + 24 * HOUR, owner="bob").total.as_dict()
    assert (bobs["gpu_hours"], bobs["gpu_cost"], bobs["cost"]) == (0.01, 0.03, 0.03)


@pytest.mark.parametrize(
    ("start", "end", "gib_hours", "waited", "rejects"),
    [
        (0.0, 1.0, 2.0, 1200, 1),
        (0.5, 1.0, 1.0, 0, 1),  # the rejection stands at the very start
        (1.0, 3.0, 2.0, 0, 0),
        (0.75, 1.25, 0.75, 0, 0),
        (1 / 6, 2 / 6, 1 / 3, 300, 0),
        (-5.0, 0.0, 0.0, 0, 0),
        (3.0, 9.0, 0.0, 0, 0),
    ],
)
def test_a_report_counts_only_its_own_time(trace, start, end, gib_hours, waited, rejects):
    total = report(T0 + start * HOUR, T0 + end * HOUR).total.as_dict()
    assert total["vram_gib_hours"] == pytest.approx(gib_hours)
    assert (total["suspended_seconds"], total["rejects"]) == (waited, rejects)


@pytest.mark.parametrize("asked_again", [True, False])
def test_waits_of_before_a_restart_end_with_those_that_were_asked_again(ada, gpu, asked_again):
    container = made(make_container(ada, "a", gpu))
    minute = HOUR / 60
    for _ in range(2):
        append(container, T0, EventKind.SUSPENDED, gpu, bytes=GIB, used_after=0)
    if asked_again:
        append(container, T0 + 5 * minute, EventKind.SUSPENDED, gpu, bytes=GIB, used_after=0, waited=300)
        append(container, T0 + 10 * minute, EventKind.RESUMED, gpu, bytes=GIB, used_after=GIB, waited=600)
    else:
        append(container, T0 + 10 * minute, EventKind.RESUMED, waited=600)
    total = report(T0, T0 + HOUR).total
    assert total.as_dict()["suspended_seconds"] == 600
    assert total.suspended_microseconds == recomputed(T0, T0 + HOUR)["suspended_microseconds"]


def test_parts_of_a_time_add_up_to_it(trace):
    cuts = [T0 + HOUR * fraction for fraction in (-1, 0.1, 0.3, 0.7, 1.9, 4)]
    whole = report(cuts[0], cuts[-1]).total
    parts = [report(start, end).total for start, end in itertools.pairwise(cuts)]
    assert sum(part.byte_microseconds for part in parts) == whole.byte_microseconds
    assert sum(part.suspended_microseconds for part in parts) == whole.suspended_microseconds
    assert sum(part.rejects for part in parts) == whole.rejects


def test_days_are_cut_at_midnight(ada, gpu):
    evening = datetime(2026, 11, 20, 22, tzinfo=UTC)
    container = made(make_container(ada, "night", gpu), evening)
    append(container, evening, EventKind.ACCEPTED, gpu, used_after=GIB)
    append(container, evening + 5 * HOUR, EventKind.ENDED)
    Container.objects.update(finished_at=evening + 5 * HOUR)
    rows = report(evening - HOUR, evening + 24 * HOUR, "day").rows
    assert [(row.group, row.as_dict()["vram_gib_hours"]) for row in rows] == [("2026-11-20", 2.0), ("2026-11-21", 3.0)]


def test_the_days_add_up_to_the_whole_whatever_was_paused_or_swapped_out(ada, gpu):
    """Swapped out, it holds nothing and waits for nothing: by day, that time was shown as suspended."""
    container = made(make_container(ada, "a", gpu))
    append(container, T0, EventKind.ACCEPTED, gpu, used_after=GIB)
    append(container, T0 + HOUR, EventKind.SWAPPED_OUT, gpu, used_after=0)
    append(container, T0 + HOUR, EventKind.PAUSED)
    append(container, T0 + 20 * HOUR, EventKind.UNPAUSED)
    append(container, T0 + 20 * HOUR, EventKind.SWAPPED_IN, gpu, used_after=GIB)
    append(container, T0 + 21 * HOUR, EventKind.ENDED)
    found = report(T0, T0 + 24 * HOUR, "day")
    assert [row.as_dict()["suspended_seconds"] for row in (*found.rows, found.total)] == [0, 0, 0]
    assert [row.as_dict()["vram_gib_hours"] for row in (*found.rows, found.total)] == [1, 1, 2]


def test_what_still_runs_counts_until_the_end_of_the_report(ada, gpu):
    container = made(make_container(ada, "a", gpu))
    append(container, T0, EventKind.ACCEPTED, gpu, used_after=GIB)
    append(container, T0 + HOUR, EventKind.SUSPENDED, gpu, used_after=GIB)
    total = report(T0, T0 + 3 * HOUR).total.as_dict()
    assert (total["vram_gib_hours"], total["suspended_seconds"]) == (3.0, 7200.0)


def test_somebody_in_two_groups_is_counted_once(ada, trace):
    for name in ("vision", "audio"):
        ada.groups.add(Group.objects.create(name=name))
    found = report(T0, T0 + 4 * HOUR, "group")
    assert [row.group for row in found.rows] == ["audio + vision"]
    assert found.rows[0].byte_microseconds == found.total.byte_microseconds


@pytest.mark.parametrize("seed", range(8))
def test_the_sums_are_those_recomputed_from_the_raw_events(db, node, seed):
    """Random lives of containers on two GPUs, several waits at once, some without an end, over three days."""
    rng = random.Random(seed)
    cards = [make_gpu(node, 0), make_gpu(node, 1)]
    people = [make_user(name) for name in ("ada", "bob", "eve")]
    for index in range(9):
        start = T0 + timedelta(seconds=rng.uniform(0, 100_000))
        container = made(make_container(rng.choice(people), f"c{index}", image=rng.choice(["torch", "jax"])), start)
        at = start
        for _ in range(rng.randrange(25)):
            at += timedelta(microseconds=rng.choice([0, 1, 999_999, rng.randrange(10**10)]))
            kind = rng.choice(["accepted", "freed", "suspended", "resumed", "rejected", "paused", "quota"])
            memory = kind in ("accepted", "freed") or rng.random() < 0.5
            append(
                container, at, kind, rng.choice(cards), used_after=rng.randrange(5 * GIB) if memory else None,
                waited=rng.choice([0, 1.5]) if kind == "rejected" else 0,
            )  # fmt: skip
        if rng.random() < 0.7:
            at += timedelta(seconds=1)
            append(container, at, EventKind.ENDED)
            Container.objects.filter(pk=container.pk).update(finished_at=at)
    for _ in range(4):
        begin = T0 + timedelta(seconds=rng.uniform(-1000, 150_000))
        end = begin + timedelta(seconds=rng.uniform(1, 150_000))
        expected = recomputed(begin, end)
        for group_by in reports.GROUPINGS:
            found = report(begin, end, group_by)
            for figure, amount in expected.items():
                assert getattr(found.total, figure) == amount, (group_by, figure)
                assert sum(getattr(row, figure) for row in found.rows) == amount, (group_by, figure)


URL = "/api/v1/reports/allocations/"


def test_the_report_as_json(client, trace):
    body = client.get(URL, {"from": "2026-11-20", "to": "2026-11-21", "group_by": "image"}).json()
    assert (body["from"], body["to"], body["group_by"]) == ("2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z", "image")
    assert [row["group"] for row in body["rows"]] == ["torch"]
    assert body["total"]["vram_gib_hours"] == 4.0


def test_the_report_as_csv_says_the_same(client, trace):
    query = {"from": "2026-11-20", "to": "2026-11-21T00:00:00+00:00", "group_by": "container"}
    answer = client.get(URL, {**query, "format": "csv"})
    assert answer["Content-Type"] == "text/csv"
    assert "attachment" in answer["Content-Disposition"]
    text = asyncio.run(_text_of(answer))
    lines = list(csv.DictReader(io.StringIO(text)))
    wanted = client.get(URL, query).json()
    assert [line["container"] for line in lines] == [row["group"] for row in wanted["rows"]]  # and no total among them
    assert sum(float(line["vram_gib_hours"]) for line in lines) == pytest.approx(wanted["total"]["vram_gib_hours"])


async def _text_of(answer) -> str:
    return b"".join([part async for part in answer.streaming_content]).decode()


@pytest.mark.parametrize("sign", "=+-@")
def test_a_name_that_looks_like_a_formula_is_only_text_in_a_spreadsheet(gpu, sign):
    eve = make_user(f"{sign}SUM(1)")
    container = made(make_container(eve, "a", gpu))
    append(container, T0, EventKind.ACCEPTED, gpu, used_after=GIB)
    lines = list(reports.csv_lines(report(T0, T0 + HOUR)))
    assert lines[1].startswith(f"'{sign}SUM(1),")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": "2026-11-21", "to": "2026-11-20"}, "from"),
        ({"from": "2026-11-20", "to": "2026-11-20"}, "from"),
        ({"from": "yesterday"}, "from"),
        ({"to": "2026-02-30"}, "to"),
        ({"to": "2026-11-20T25:00"}, "to"),
        ({"group_by": "colour"}, "group_by"),
        ({"format": "pdf"}, "format"),
        ({"groupby": "user"}, "groupby"),
    ],
)
def test_a_range_or_a_grouping_that_makes_no_sense_is_refused(client, query, field):
    answer = client.get(URL, query)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_a_time_without_events_is_an_empty_report(client):
    body = client.get(URL, {"from": "2020-01-01", "to": "2020-01-02"}).json()
    assert (body["rows"], body["total"]["vram_gib_hours"]) == ([], 0.0)


def test_shares_that_stand_together_add_up_to_100_percent(ada, gpu):
    """Six sixths would be 17 % each."""
    for name in ("ada", "ben", "cy", "di", "ed", "flo"):
        owner = ada if name == "ada" else make_user(name)
        append(made(make_container(owner, f"{name}-a", gpu)), T0, EventKind.ACCEPTED, gpu, used_after=GIB)
    expected = [17, 17, 17, 17, 16, 16]
    page = signed_in(ada).get("/reports/", {"from": "2026-11-20", "to": "2026-11-20"}).content.decode()
    assert [int(each) for each in re.findall(r'data-label="Share">(\d+) %', page)] == expected
    letter = monthly.letter(T0 - HOUR, T0 + HOUR, [])
    assert [int(each) for each in re.findall(r"(\d+) %", letter.body.split("\n\n")[0])] == expected


@pytest.mark.parametrize(
    ("preset", "first", "last"),
    [
        ("last-month", "2026-10-01", "2026-10-31"),
        ("last-week", "2026-11-02", "2026-11-08"),
        ("this-week", "2026-11-09", "2026-11-11"),
    ],
)
def test_usual_reports_are_one_click(client, ada, gpu, monkeypatch, preset, first, last):
    monkeypatch.setattr(reporting.timezone, "localdate", lambda: date(2026, 11, 11))  # a Wednesday
    browser = signed_in(ada)
    answer = browser.get("/reports/", {"preset": preset, "group_by": "group"})
    assert (str(answer.context["first"]), str(answer.context["last"])) == (first, last)
    assert [name for name, _, current in answer.context["presets"] if current] == [preset]
    as_file = browser.get("/reports/", {"preset": preset, "format": "csv"})
    assert f"gpushare-user-{first}-{last}.csv" in as_file.headers["Content-Disposition"]
