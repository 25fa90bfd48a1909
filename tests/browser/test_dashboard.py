"""The overview: who holds what, who waits, and the buttons."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.scenes import a_busy_card
from tests.support import rows
from tests.support.site import person


def test_overview_shows_bars_queue_and_states(site, open_as, shot):
    a_busy_card()
    page = open_as("admin")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator("article.card")).to_have_count(1)
    expect(page.locator(".card .bar .used")).to_have_count(4)
    expect(page.locator("#queue li .name")).to_have_text(["evaluate", "sweep-12"])
    expect(page.locator("tr[data-id]")).to_have_count(5)
    expect(page.locator("#totals")).to_contain_text("2suspended")
    shot(page, "overview")
    for size in ("wide", "phone"):
        for theme in ("light", "dark"):
            page = open_as("admin", size=size, theme=theme)
            expect(page.locator("#queue li")).to_have_count(2)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            shot(page, f"overview-{size}-{theme}")


def test_a_suspended_container_is_seen_to_resume_without_a_reload(site, open_as):
    _, made = a_busy_card()
    page = open_as("admin")
    row = page.locator(f'tr[data-id="{made["c"].pk}"]')
    expect(row).to_have_attribute("data-state", "suspended")
    made["c"].suspended_since = made["c"].queue_position = None
    made["c"].save()
    made["c"].claims.update(used=2 * rows.GIB, granted=2 * rows.GIB, peak=2 * rows.GIB)
    expect(row).to_have_attribute("data-state", "running")
    expect(row.locator('[data-field="figures"]')).to_have_text("2 GiB / 2 GiB / 2 GiB")
    expect(page.locator("#queue li .name")).to_have_text(["sweep-12"])


def test_an_empty_appliance_teaches_the_first_step(site, open_as, shot):
    rows.gpu()
    page = open_as("user")
    expect(page.get_by_role("link", name="Launch the first one")).to_be_visible()
    expect(page.locator("#no-queue")).to_be_visible()
    shot(page, "overview-empty")


def test_signing_in(site, open_as, shot):
    person("ann")
    page = open_as("")
    expect(page).to_have_url(re.compile("/login/"))
    shot(page, "sign-in")
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("do not fit")
    page.get_by_label("Password").fill("a long enough password")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".who")).to_have_text("ann")
