"""From the beginning of a page to each of its panels by a few keys, however much stands above it."""

import re

from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from tests.support.answers import answering, obey
from web.models import Command, Container

FOCUSED = "document.activeElement.textContent"


def test_the_table_is_reached_past_attention_cards_and_queue_with_a_handful_of_keys(site, open_as):
    scenes.a_crowd(60, 30)
    page = open_as("boss", role="admin")
    expect(page.locator("#attention li li").first).to_be_visible()
    reached = []
    while "Skip to: Containers" not in reached:
        assert len(reached) < 6, reached
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    page.keyboard.press("Enter")
    for _ in ("List", "By person", "Search"):
        page.keyboard.press("Tab")
    expect(page.get_by_label("Search")).to_be_focused()


def test_each_panel_of_a_page_is_a_landmark_with_a_link_to_it(site, open_as):
    _, made = scenes.a_busy_card()
    page = open_as("boss", f"/containers/{made['a'].pk}/", role="admin")
    links = page.locator("a.skip")
    panels = page.locator("main section[aria-labelledby]")
    expect(links).to_have_count(1 + panels.count())
    for number in range(panels.count()):
        panel = panels.nth(number)
        expect(page.get_by_role("region", name=panel.locator("h2").first.inner_text(), exact=True)).to_have_count(1)
        assert links.nth(number + 1).get_attribute("href") == f"#{panel.get_attribute('id')}"
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.locator('a.skip[href="#nodes"]')).to_be_hidden()  # of one node there is no such panel


def test_with_thirty_waiters_the_table_begins_on_the_first_screen(site, open_as, shot):
    """1,440 by 900, 200 containers with the longest names."""
    scenes.a_crowd()
    page = open_as("boss", role="admin")
    expect(page.locator("#attention li li").first).to_be_visible()
    expect(page.locator(".card .legend li").nth(16)).to_be_attached()
    expect(page.locator(".card .chart canvas")).to_have_count(2)
    expect(page.locator("#attention li li")).to_have_count(3)
    assert page.evaluate("(list => list.scrollHeight - list.clientHeight)(document.getElementById('attention'))") <= 0
    row = page.locator("tr[data-id]").first.bounding_box()
    assert row["y"] + row["height"] <= 900, row
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    shot(page, "thirty-waiters", whole=False)


def reach(page, what, most=60):
    """By Tab alone, from where the focus is."""
    expect(what).to_be_visible()
    for _ in range(most):
        if what.evaluate("(one) => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{what} is not reached with {most} keys")


def press(page, what):
    reach(page, what)
    page.keyboard.press("Enter")


def test_a_launch_a_kill_with_a_reason_and_the_incidents_need_no_mouse(site, open_as):
    scenes.a_busy_card()
    page = open_as("op", role="operator")
    bar = page.get_by_role("navigation", name="Pages")
    with answering(obey):
        press(page, bar.get_by_role("link", name="Launch"))
        for field, text in (("#f-image", "local"), ("#f-command", "sleep 60"), ("#f-gpu_memory", "64MiB")):
            reach(page, page.locator(field))
            page.keyboard.type(text)
        reach(page, page.get_by_label("Name", exact=True))
        page.keyboard.type("by-hand")
        press(page, page.get_by_role("button", name="Launch", exact=True))
        expect(page.get_by_role("heading", level=1, name="by-hand")).to_be_visible()
        Container.objects.filter(name="by-hand").update(started_at=rows.ago(5))
        expect(page.locator("#container")).to_have_attribute("data-state", "running")
        press(page, page.get_by_role("button", name="Kill", exact=True))
        expect(page.get_by_label("Reason, for the record")).to_be_focused()
        page.keyboard.type("left alone")
        page.keyboard.press("Enter")
        expect(page.locator("#container")).to_have_attribute("data-state", "killed")
    assert Command.objects.get(kind=Command.Kind.KILL).note == "left alone"
    page.goto("/")
    press(page, bar.get_by_role("link", name="Incidents"))
    reach(page, page.get_by_label("Kind", exact=True))
    page.keyboard.type("Killed")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("kind=killed"))
    expect(page.locator("tbody tr")).to_have_count(1)
    press(page, page.locator("tbody").get_by_role("link", name="by-hand"))
    expect(page.get_by_role("heading", level=1, name="by-hand")).to_be_visible()
