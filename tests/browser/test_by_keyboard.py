"""From the beginning of a page to each of its panels by a few keys, however much stands above it."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser import scenes

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
