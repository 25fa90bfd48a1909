"""Every page as every role: at both widths, in both themes, and what axe says about it."""

import os

import pytest
from playwright.sync_api import expect

from tests.browser import scenes
from tests.browser.conftest import SIZES
from tests.support import axe, rows
from tests.support.site import person
from web import audit

PAGES = (
    "overview",
    "container",
    "launch",
    "queue",
    "deciding",
    "history",
    "reports",
    "fairness",
    "me",
    "people",
    "audit",
    "nodes",
    "notifications",
)
ALL = [(size, theme) for size in SIZES for theme in ("light", "dark")]
CORNERS = [ALL[0], ALL[-1]]  # both widths and both themes, in half of the time
# Of the roles that see the same as another does or less, axe has one corner each.
CORNERS_OF = {"viewer": CORNERS[:1], "user": CORNERS, "operator": CORNERS[1:], "admin": []}
PAST = ("history", "reports", "fairness")  # of PAGES, those that show a day
WANTED = "GPUSHARE_SCREENSHOTS" in os.environ
ROLES = ("viewer", "user", "operator", "admin")


def address(name: str, made) -> str:
    match name:
        case "overview":
            return "/"
        case "container":
            return f"/containers/{made['c'].pk}/"
        case "launch" if made:
            return f"/launch/?from={made['a'].pk}"
    return f"/{name}/"


@pytest.mark.parametrize("views", [CORNERS, pytest.param(ALL, marks=pytest.mark.long)], ids=["corners", "all"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", PAGES)
def test_every_page_as_every_role_at_both_widths_and_in_both_themes(site, open_as, shot, name, role, views):
    card, made = scenes.a_busy_card()
    scenes.an_hour_of(card)
    scenes.a_life(made["c"], card)
    if name in PAST:
        scenes.a_day(card, [person("ann"), person("bob"), person("carla")], 9)
    _write_log(site, made["c"])
    page = open_as("me", address(name, made), role=role)
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    if name == "history":
        expect(page.locator("#replay")).to_have_attribute("data-ready", "true")
    if name in ("overview", "container"):
        expect(page.locator(".chart canvas").first).to_be_visible()
    if name == "container" and role in ("operator", "admin"):
        expect(page.locator("#log")).to_contain_text("epoch 39")
    # What an admin has on these pages is judged by test_every_page.py, and more strictly.
    _look_at(page, shot, f"{name}-{role}", CORNERS_OF[role] if views == CORNERS else views)


@pytest.mark.parametrize("name", ["sign-in", "not-there", "cookies"])
def test_every_page_that_needs_no_session(site, open_as, shot, name):
    page = open_as("", "/nowhere/" if name == "not-there" else "/login/")
    if name == "cookies":
        page.context.clear_cookies()
        page.get_by_label("Name").fill("ann")
        page.get_by_label("Password").fill("something")
        page.get_by_role("button", name="Sign in").click()
    _look_at(page, shot, name)


@pytest.mark.parametrize("name", ["overview", "queue", "history", "reports", "fairness", "launch"])
def test_every_page_of_an_appliance_that_nobody_has_used(site, open_as, shot, name):
    rows.node()
    page = open_as("me", address(name, None), role="admin")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator("main .empty:visible").first).not_to_be_empty()
    _look_at(page, shot, f"{name}-unused")


def test_what_stands_above_a_page(site, open_as, shot):
    """Every banner, dialog and answer, over a page."""
    _, made = scenes.a_busy_card()
    rows.node(engine_error="Cannot connect to the Docker daemon at unix:///var/run/docker.sock", seen_at=rows.ago(60))
    audit.record("admin", "warn", made["b"].pk, name="notebook", owner="bob")
    page = open_as("bob", role="operator")
    expect(page.locator("#banner-engine")).to_be_visible()
    expect(page.locator("#banner-simulated")).to_contain_text("Simulated card")
    expect(page.locator(".card .simulated")).to_be_visible()
    page.evaluate("""async () => {
      const app = document.querySelector('script[src*="app.js"]').src;
      const { toast } = await import(app.replace("app.js", "parts/actions.js"));
      toast("good", "train-7: It is paused."); toast("bad", "The engine is away: " + "no such file ".repeat(9));
      toast("warn", "The scheduler has not answered yet. It will do this as soon as it can.");
    }""")
    page.get_by_label("Select all shown").check()
    _look_at(page, shot, "banners")
    page.locator("#bulk").get_by_role("button", name="Kill").click()
    _look_at(page, shot, "dialog")


def _look_at(page, shot, name, views=CORNERS):
    """At both widths and in both themes: whether it fits, and a picture if one is wanted. Axe judges `views`."""
    for size, theme in ALL:
        page.set_viewport_size(SIZES[size])
        page.emulate_media(color_scheme=theme)
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        if WANTED:
            shot(page, f"{name}-{size}-{theme}")
        too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert too_wide <= 0, f"{name} at {size} is {too_wide} pixels too wide"
        if (size, theme) not in views:
            continue
        assert axe.faults(page) == [], f"{name} {size} {theme}"


def test_the_pictures_of_the_readme(site, open_as, shot):
    """GPUSHARE_SCREENSHOTS=docs/screenshots makes them anew."""
    card, made = scenes.a_card_in_turns()
    scenes.an_hour_of(card)
    scenes.a_life(made["c"], card)
    _write_log(site, made["c"])
    page = open_as("admin")
    expect(page.locator(".chart canvas").first).to_be_visible()
    shot(page, "dashboard", judged=True)
    page = open_as("admin", f"/containers/{made['c'].pk}/", theme="dark")
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(page.locator("#log")).to_contain_text("epoch 39")
    shot(page, "container", whole=False, judged=True)
    page = open_as("admin", f"/launch/?from={made['d'].pk}")
    expect(page.locator(".verdict")).to_contain_text("free")
    shot(page, "launch", whole=False, judged=True)
    scenes.a_day(card, [person("ann"), person("bob"), person("carla")], 12)
    page = open_as("admin", "/history/", theme="dark")
    page.locator("#replay[data-ready]").wait_for()
    page.locator("#slider").fill("130")
    expect(page.locator("#then li")).not_to_have_count(1)
    folder = shot(page, "history", whole=False, judged=True).parent
    pictures = [folder / f"{name}.png" for name in ("dashboard", "container", "launch", "history")]
    assert all(picture.stat().st_size < 300_000 for picture in pictures)


def _write_log(site, container) -> None:
    (site.home / "logs").mkdir(exist_ok=True)
    lines = "".join(f"epoch {number}: loss {1 / (number + 1):.4f}\n" for number in range(40))
    (site.home / "logs" / f"{container.pk}.log").write_text(lines)
