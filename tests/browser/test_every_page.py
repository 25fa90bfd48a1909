"""Every page that web/urls.py has, and the API's own: what axe says of it, in both themes, wide and narrow."""

import pytest

from tests.browser import every, scenes
from tests.browser.conftest import SETTLED, SIZES
from tests.browser.test_pages import ALL, CORNERS
from tests.support import axe
from tests.support.site import person

LONG = (pytest.mark.long, pytest.mark.timeout(1200))  # each view is looked through by axe


@pytest.mark.parametrize("views", [CORNERS, pytest.param(ALL, marks=LONG)], ids=["corners", "all"])
@pytest.mark.parametrize("name", every.names())
def test_axe_finds_nothing_on_it(site, open_as, name, views):
    card, made = scenes.a_busy_card()
    page = open_as("" if name == "login" else "boss", "/login/" if name == "login" else "/nowhere/", role="admin")
    where = every.address(name, made["c"], card)
    if not every.is_page(page.request, where):
        assert name not in every.NAMED, f"{where} is a page"
        return
    scenes.an_hour_of(card)
    scenes.a_life(made["c"], card)
    scenes.a_day(card, [person("ann"), person(scenes.OWNERS[1])], 9)
    page.goto(where)
    page.wait_for_load_state("networkidle" if name in every.QUIET else "load")
    if name == "by-person":
        page.locator("#by-person > li").first.wait_for()
    for size, theme in ALL:
        page.set_viewport_size(SIZES[size])
        page.emulate_media(color_scheme=theme)
        page.evaluate(SETTLED)
        too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert too_wide <= 0, f"{name} at {size} is {too_wide} pixels too wide"
        if (size, theme) not in views:
            continue
        found = axe.faults(page)
        assert not found, f"{name}, {size}, {theme}\n" + "\n".join(found)
