"""Every page: what it shows, at both widths, in both themes, and what axe says about it."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser import scenes
from tests.support.site import person

PAGES = ("overview", "container", "launch", "queue", "history", "reports", "fairness", "sign-in")


def address(name: str, made) -> str:
    return {
        "overview": "/",
        "container": f"/containers/{made['c'].pk}/",
        "launch": f"/launch/?from={made['a'].pk}",
        "sign-in": "/login/",
    }.get(name, f"/{name}/")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_at_both_widths_and_in_both_themes(site, open_as, shot, name):
    card, made = scenes.a_busy_card()
    scenes.an_hour_of(card)
    scenes.a_life(made["c"], card)
    scenes.a_day(card, [person("ann"), person("bob"), person("carla")], 9)
    (site.home / "logs").mkdir(exist_ok=True)
    (site.home / "logs" / f"{made['c'].pk}.log").write_text(
        "".join(f"epoch {n}: loss {1 / (n + 1):.4f}\n" for n in range(40))
    )
    for size in ("wide", "phone"):
        for theme in ("light", "dark"):
            page = open_as("" if name == "sign-in" else "admin", address(name, made), size=size, theme=theme)
            if name != "sign-in":
                expect(page.locator("#connection")).to_have_attribute("data-state", "live")
            if name == "history":
                expect(page.locator("#replay")).to_have_attribute("data-ready", "true")
            if name in ("overview", "container"):
                expect(page.locator(".chart canvas").first).to_be_visible()
            if name == "container":
                expect(page.locator("#log")).to_contain_text("epoch 39")
            shot(page, f"{name}-{size}-{theme}")
            too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert too_wide <= 0, f"{name} at {size} is {too_wide} pixels too wide"
            found = Axe().run(page)
            serious = [
                f"{fault['id']}: {[node['html'][:150] for node in fault['nodes'][:4]]}"
                for fault in found.response["violations"]
                if fault["impact"] in ("serious", "critical")
            ]
            assert serious == [], f"{name} {size} {theme}"
