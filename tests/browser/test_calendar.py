"""The calendar: bars for who looks, and a table and forms that do the same by keyboard."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tests.browser import scenes
from web.models import Announcement, Reservation


@pytest.mark.parametrize("size", ["wide", "phone"])
def test_a_person_reserves_by_keyboard_and_sees_it_in_the_week(site, open_as, shot, size):
    scenes.a_busy_card()
    soon = timezone.now() + timedelta(days=1)
    Announcement.objects.create(message="New driver", made_by="root", begins_at=soon, ends_at=soon + timedelta(hours=9))
    page = open_as("ann", "/calendar/?zone=Europe/Berlin", size=size, role="user")
    expect(page.locator("#banners")).to_contain_text("New driver")
    page.locator("summary", has_text="Reserve").press("Enter")
    form = page.locator("details", has_text="Reserve").locator("form")
    at = f"{timezone.now() + timedelta(days=2):%Y-%m-%d}T10:00"
    form.get_by_label("Begins").fill(at)
    form.get_by_label("Hours").fill("26")
    form.get_by_label("GPU memory").fill("1GiB")
    form.get_by_label("Purpose").fill("class")
    form.get_by_role("button", name="Reserve").press("Enter")
    expect(page.locator("main")).to_contain_text("Reserved for ann: number")
    assert (Reservation.objects.get().starts, Reservation.objects.get().zone) == (at, "Europe/Berlin")
    bar = page.locator(".calendar rect:not(.window)").first
    assert bar.bounding_box()["width"] > 40
    assert page.locator(".calendar rect.window").count() >= 1
    lines = (
        "all => all.map(it => { const r = new Range(); r.selectNodeContents(it); return r.getClientRects().length; })"
    )
    assert set(page.locator(".calendar th + th").evaluate_all(lines)) == {2 if size == "phone" else 1}, "days alike"
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    shot(page, f"calendar-{size}")
    page.get_by_role("button", name="Cancel reservation").press("Enter")
    expect(page.locator("main")).to_contain_text("The reservation is over.")
