"""The history of any day: chosen, zoomed into, with waits and kills marked, and with names however long they are."""

import re
from datetime import timedelta
from itertools import combinations

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from tests.support.site import person
from web import audit
from web.models import AllocationEvent, UsageSample

Kind = AllocationEvent.Kind


@pytest.fixture
def opened(open_as):
    def open_page(path="/history/", size="wide"):
        page = open_as("ann", path, size=size)
        page.locator("#replay[data-ready]").wait_for()
        return page

    return open_page


def held(card, name, at, span, count, **fields):
    made = rows.container(name, person("ann"), card, finished_at=rows.ago(0), exit_code=0, **fields)
    UsageSample.objects.bulk_create(
        UsageSample(at=at + timedelta(seconds=span * step), span=span, gpu=card, container=made, used=rows.GIB,
                    peak=rows.GIB, cpus_used=2.5, memory_used=3 * rows.GIB, had=span / 4)
        for step in range(count)
    )  # fmt: skip
    return made


def test_a_day_of_which_only_hours_are_kept_is_chosen_by_its_date(site, opened):
    card = rows.gpu()
    day = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=20)
    held(card, "long-ago", day, 3600, 48)
    held(card, "of-today", timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=90), 60, 90)
    page = opened()
    expect(page.locator("h1")).to_contain_text("The last 24 hours")
    expect(page.locator("#then")).not_to_contain_text("long-ago")
    page.get_by_label("Day", exact=True).fill(f"{day + timedelta(days=1):%Y-%m-%d}")
    page.locator("#replay[data-ready]").wait_for()
    expect(page.locator("h1")).to_contain_text("24 hours until")
    then = page.locator("#then li", has_text="long-ago")
    page.get_by_label("Time", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    expect(then).to_contain_text("1 GiB")
    expect(then).to_contain_text("GPU 25 % · 2.5 processors · 3 GiB of RAM")
    page.get_by_role("link", name="Earlier").click()
    page.locator("#replay[data-ready]").wait_for()
    expect(page.locator("#then-bar .used")).to_have_count(1)
    page.get_by_role("link", name="Now").click()
    expect(page.locator("h1")).to_contain_text("The last 24 hours")


def test_plus_and_minus_zoom_around_the_time_that_is_looked_at(site, opened):
    card = rows.gpu()
    now = timezone.now().replace(second=0, microsecond=0)
    held(card, "steady", now - timedelta(minutes=1440), 60, 1440)
    page = opened()
    slider = page.get_by_label("Time", exact=True)
    slider.focus()
    slider.fill("144")  # half of the day
    at = page.locator("#at").inner_text()
    for length in ("6 hours", "1 hour"):
        slider.press("+")
        expect(page.locator("h1")).to_contain_text(f"{length} until")
        page.locator("#replay[data-ready]").wait_for()
        slider.focus()
        slider.fill(str(int(slider.get_attribute("max") or 0) // 2))
        expect(page.locator("#at")).to_have_text(re.compile(re.escape(at[:-2])))  # to ten minutes
    assert int(slider.get_attribute("max") or 0) == 60  # a point each minute
    slider.press("-")
    expect(page.locator("h1")).to_contain_text("6 hours until")


def test_waits_and_kills_are_marked_and_lead_to_their_time(site, opened, shot):
    card = rows.gpu()
    start = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=600)
    made = held(card, "patient", start, 60, 540)
    type(made).objects.filter(pk=made.pk).update(created_at=start, started_at=start)
    story = ((500, Kind.SUSPENDED, 0), (440, Kind.RESUMED, 3600), (60, Kind.KILLED, 0), (60, Kind.ENDED, 0))
    audit.append(
        events=[
            AllocationEvent(at=rows.ago(60 * age), kind=kind, container=made, waited=waited,
                            gpu=None if kind in (Kind.KILLED, Kind.ENDED) else card)
            for age, kind, waited in story
        ]
    )  # fmt: skip
    page = opened()
    marks = page.locator("#marks li")
    expect(marks).to_have_count(2)
    expect(marks.nth(0)).to_contain_text("waited 1 h 0 min")
    expect(marks.nth(1)).to_contain_text("killed")
    wait, kill = page.locator("#waits i"), page.locator("#day .kill-line")
    expect(wait).to_have_count(1)
    expect(kill).to_have_count(1)
    chart, box = page.locator("#day .u-over").bounding_box(), wait.bounding_box()
    assert abs(box["width"] / chart["width"] - 1 / 24) < 0.005
    assert abs((box["x"] - chart["x"]) / chart["width"] - (1440 - 500) / 1440) < 0.01
    marks.nth(0).get_by_role("button").click()
    expect(page.locator("#then li").first).to_contain_text("patient")
    expect(page.get_by_label("Time", exact=True)).to_be_focused()
    shot(page, "history-marked")


@pytest.mark.parametrize("width", [400, 1440])
def test_no_name_or_owner_covers_another_or_widens_the_page(site, opened, width):
    card = rows.gpu(total=80 * rows.GIB)
    minute = timezone.now().replace(second=0, microsecond=0)
    for number, owner in enumerate(scenes.OWNERS * 2):
        made = rows.container(f"{scenes.LONGEST[:60]}-{number}", person(owner), card, quota=8, used=2)
        UsageSample.objects.bulk_create(
            UsageSample(at=minute + timedelta(minutes=later), span=1, gpu=card, container=made, used=2 * rows.GIB,
                        peak=2 * rows.GIB, suspended=1, had=0.2, cpus_used=1, memory_used=rows.GIB)
            for later in (0, 5)  # as the scheduler goes on to write them
        )  # fmt: skip
        audit.append([AllocationEvent(at=rows.ago(50), kind=Kind.SUSPENDED, container=made, gpu=card)])
    page = opened()
    page.set_viewport_size({"width": width, "height": 900})
    expect(page.locator("#then li")).to_have_count(11)
    expect(page.locator("#marks li")).to_have_count(10)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    for inside in ("#then li", "#then li > *", "#marks li", "#marks li > *"):
        found = page.locator(inside).evaluate_all("all => all.map(one => one.getBoundingClientRect().toJSON())")
        boxes = [box for box in found if box["width"] and box["height"]]
        assert boxes
        for one, other in combinations(boxes, 2):
            across = min(one["right"], other["right"]) - max(one["left"], other["left"])
            down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
            assert across <= 0.5 or down <= 0.5, (inside, one, other)


def test_nonsense_in_the_address_shows_a_day_and_is_refused_where_figures_are_asked_for(site, open_as):
    card = rows.gpu()
    page = open_as("ann", "/history/?hours=99&until=tomorrow&gpu=none", role="user")
    expect(page.locator("h1")).to_contain_text("The last 24 hours")
    for query in ("hours=99", "hours=-1", "until=tomorrow", "until=1e400", "until=-9e99"):
        answer = page.request.get(f"/history/{card.uuid}/day/?{query}")
        assert (answer.status, answer.json()["error"]["field"]) == (400, query.split("=")[0])
