"""Where scripts are off, a page says what to do, and shows nothing empty as if there were nothing."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser import every, scenes
from tests.support.site import person

EMPTY = """() => [...document.querySelectorAll("main :is(.panel, .bar, .chart, .life, .terminal-place, ul, ol)")]
  .filter(
  (each) => each.checkVisibility() && each.offsetHeight > 10 && !each.innerText.trim() && !each.querySelector("input")
).map((each) => each.outerHTML.slice(0, 150))"""


@pytest.mark.parametrize("name", ["dashboard", "queue_page", "history", "fairness", "launch", "container", "console"])
def test_nothing_is_shown_empty_without_scripts(site, chromium, name):
    card, made = scenes.a_busy_card()
    scenes.a_life(made["c"], card)
    scenes.a_day(card, [person("ann")], 4)
    with chromium.new_context(java_script_enabled=False, base_url=site.url) as context:
        context.add_cookies([site.cookie(person("boss", "admin"))])
        page = context.new_page()
        page.goto(every.address(name, made["c"], card))
        expect(page.locator("noscript p")).to_contain_text("Allow them for this address")
        assert page.evaluate(EMPTY) == []
