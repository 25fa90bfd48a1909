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
    _write_log(site, made["c"])
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


def test_the_pictures_of_the_readme(site, open_as, shot):
    """GPUSHARE_SCREENSHOTS=docs/screenshots makes them anew."""
    card, made = scenes.a_busy_card()
    scenes.an_hour_of(card)
    scenes.a_life(made["c"], card)
    _write_log(site, made["c"])
    page = open_as("admin")
    expect(page.locator(".chart canvas").first).to_be_visible()
    shot(page, "dashboard")
    page = open_as("admin", f"/containers/{made['c'].pk}/", theme="dark")
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(page.locator("#log")).to_contain_text("epoch 39")
    shot(page, "container", whole=False)
    page = open_as("admin", f"/launch/?from={made['d'].pk}")
    expect(page.locator(".verdict")).to_contain_text("free")
    shot(page, "launch", whole=False)
    scenes.a_day(card, [person("ann"), person("bob"), person("carla")], 12)
    page = open_as("admin", "/history/", theme="dark")
    page.locator("#replay[data-ready]").wait_for()
    page.locator("#slider").fill("130")
    expect(page.locator("#then li")).not_to_have_count(1)
    folder = shot(page, "history", whole=False).parent
    pictures = [folder / f"{name}.png" for name in ("dashboard", "container", "launch", "history")]
    assert all(picture.stat().st_size < 300_000 for picture in pictures)


def _write_log(site, container) -> None:
    (site.home / "logs").mkdir(exist_ok=True)
    lines = "".join(f"epoch {number}: loss {1 / (number + 1):.4f}\n" for number in range(40))
    (site.home / "logs" / f"{container.pk}.log").write_text(lines)
