"""What was: reports on the screen, as CSV and on paper; a day replayed; who held and who computed."""

import csv
import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone
from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from tests.support.answers import answering, obey
from tests.support.site import person
from web import audit
from web.models import AllocationEvent, Container, UsageSample

EventKind = AllocationEvent.Kind


@pytest.fixture
def used(site):
    """ann held 2 GiB for two hours and waited for a minute; bob held 1 GiB for one hour."""
    card = rows.gpu()
    for name, size, hours in (("ann", 2, 2), ("bob", 1, 1)):
        made = rows.container(f"of-{name}", person(name), card, image=f"image-of-{name}", finished_at=timezone.now(),
                              exit_code=0)  # fmt: skip
        story = [
            (hours * 3600, EventKind.ACCEPTED, size, size, 0),
            (120, EventKind.SUSPENDED, 1, size, 0),
            (60, EventKind.RESUMED, 0, size, 60),
            (0, EventKind.FREED, size, 0, 0),
        ]
        audit.append(
            events=[
                AllocationEvent(at=rows.ago(age), kind=kind, container=made, gpu=card, bytes=amount * rows.GIB,
                                used_after=after * rows.GIB, waited=waited)
                for age, kind, amount, after, waited in story
            ]
        )  # fmt: skip


def test_a_report_is_grouped_shown_and_taken_away_as_csv(used, open_as, shot):
    page = open_as("boss", "/reports/", role="operator")
    body = page.locator("table.report tbody tr")
    expect(body).to_have_count(2)
    expect(body.nth(0)).to_contain_text("ann")
    expect(body.nth(0).locator("td").nth(2)).to_have_text(re.compile(r"^4\.0|^3\.9"))
    expect(page.locator("tfoot")).to_contain_text("Total")
    wide, narrow = (body.nth(n).locator(".share").bounding_box()["width"] for n in (0, 1))
    assert 3.5 < wide / narrow < 4.5
    page.get_by_label("by", exact=True).select_option("image")
    page.get_by_role("button", name="Show").click()
    expect(body.nth(0)).to_contain_text("image-of-ann")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert re.fullmatch(r"gpushare-image-\d{4}-\d\d-\d\d-\d{4}-\d\d-\d\d\.csv", download.value.suggested_filename)
    with download.value.path().open() as file:
        found = list(csv.DictReader(file))
    assert [row["image"] for row in found] == ["image-of-ann", "image-of-bob"]
    page.emulate_media(media="print")
    expect(page.locator("header.top")).to_be_hidden()
    expect(page.locator("#range")).to_be_hidden()
    shot(page, "reports-printed")


def test_a_report_is_of_everybody_as_over_rest_or_of_ones_own(used, open_as):
    page = open_as("bob", "/reports/")
    expect(page.locator("table.report tbody tr")).to_have_count(2)
    page.get_by_label("Only mine").check()
    page.get_by_role("button", name="Show").click()
    expect(page.locator("table.report tbody tr")).to_have_count(1)
    expect(page.locator("#report-title")).to_contain_text("your own")
    assert "ann" not in page.locator("main").inner_text()


def test_the_day_is_dragged_through(site, open_as):
    card = rows.gpu()
    early, late = (rows.container(name, person("ann"), card, finished_at=rows.ago(0), exit_code=0)
                   for name in ("early", "late"))  # fmt: skip
    now = timezone.now().replace(second=0, microsecond=0)
    UsageSample.objects.bulk_create(
        UsageSample(at=now - timedelta(minutes=minute), span=60, gpu=card, used=rows.GIB, peak=rows.GIB,
                    container=early if minute > 720 else late)
        for minute in range(-5, 1440)  # as the scheduler goes on to write them
    )  # fmt: skip
    page = open_as("ann", "/history/")
    page.locator("#replay[data-ready]").wait_for()
    then = page.locator("#then li")
    expect(then.first).to_contain_text("late")
    plot = page.locator("#day .u-over").bounding_box()
    middle = plot["y"] + plot["height"] / 2
    page.mouse.move(plot["x"] + plot["width"] * 0.9, middle)
    page.mouse.down()
    page.mouse.move(plot["x"] + plot["width"] * 0.25, middle, steps=5)
    page.mouse.up()
    expect(then.first).to_contain_text("early")
    expect(then.first).to_contain_text("1 GiB")
    expect(then.first).to_contain_text("ann")
    expect(page.locator("#then-bar .used")).to_have_count(1)
    then.first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("early")


def test_fairness_shows_who_used_how_much_of_their_fair_share(site, open_as, shot):
    scenes.a_lab_of_eight()
    Group.objects.create(name="vision").user_set.add(person("ann"), person("bob"))
    page = open_as("boss", "/fairness/", role="operator")
    people = page.get_by_role("group", name="People")
    expect(people.locator("tbody tr")).to_have_count(8)
    first = people.locator("tbody tr").first
    for words in ("greta", "20", "40 s"):  # containers, the mean wait
        expect(first).to_contain_text(words)
    expect(first.locator(".share")).to_have_class(re.compile("over"))
    expect(page.get_by_role("region", name="Above their fair share")).to_contain_text(
        "more than the fair share of 20 GiB"
    )
    expect(page.locator("#curve canvas")).to_be_visible()
    expect(page.locator("#curve-legend .key")).to_have_count(8)
    expect(page.get_by_role("group", name="Groups")).to_contain_text("no shares")
    shot(page, "fairness-shares")
    page.get_by_role("link", name="Last 24 hours").click()
    expect(first).to_contain_text("greta")


@pytest.mark.parametrize("role", ["user", "operator"])
def test_an_idle_holder_is_paused_from_the_list_by_who_may(site, open_as, role):
    _, made = scenes.a_busy_card()
    Container.objects.filter(pk=made["b"].pk).update(idle_since=rows.ago(2400))
    page = open_as("me", "/fairness/", role=role)
    idle = page.locator("tr", has=page.get_by_role("link", name="notebook"))
    expect(idle).to_contain_text("1.6 GiB")
    if role == "user":
        expect(idle.get_by_role("button")).to_have_count(0)
        return
    with answering(obey):
        idle.get_by_role("button", name="Pause").click()
        expect(page.locator(".toast.good")).to_contain_text("notebook: pause done.")
        expect(idle.get_by_role("button", name="Resume")).to_be_visible()
