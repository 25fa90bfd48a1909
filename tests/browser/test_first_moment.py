"""The first moment of a page, while the live line tells its first snapshot: a press is a click, and nothing moves."""

import re

import pytest
from django.utils import timezone
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from tests.browser import scenes
from tests.browser.test_pages import address
from tests.support import rows
from web.models import Container

PAGES = ("overview", "container", "launch", "queue", "history", "reports", "me", "people", "nodes", "notifications")
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
ANY = "main a, main button"
# The middle of the first of these that is seen; window.clicked then says whether it had a click.
AIM = """(among) => {
  const target = [...document.querySelectorAll(among)].find((each) => {
    const box = each.getBoundingClientRect();
    return box.height > 0 && box.bottom < innerHeight && each.checkVisibility({ visibilityProperty: true });
  });
  window.clicked = false;
  target.addEventListener("click", (event) => {
    window.clicked = true;
    event.preventDefault();
    event.stopImmediatePropagation();
  });
  const box = target.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""
# Where what can be pressed stands, for what is seen when this is asked first; what is gone then stands nowhere.
PLACES = """() => {
  window.seen ??= [...document.querySelectorAll("a, button, input, select, summary")].filter(
    (each) => each.getBoundingClientRect().height > 0 && each.checkVisibility({ visibilityProperty: true }),
  );
  return window.seen.map((each, index) => {
    const { x, y } = each.getBoundingClientRect();
    return `${index} ${each.outerHTML.slice(0, 90)} at ${Math.round(x)}, ${Math.round(y)}`;
  });
}"""


class Held:
    """A live line of which the page hears nothing until it is let go."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.kept: list[tuple[WebSocketRoute, str]] = []
        self.holds = True
        page.route_web_socket("**/ws/dashboard/", self._connect)

    def _connect(self, route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        route.on_message(server.send)
        server.on_message(lambda text: self.kept.append((route, text)) if self.holds else route.send(text))

    def wait_for(self, words: str) -> None:
        while not any(words in text for _, text in self.kept):
            self.page.wait_for_timeout(10)

    def let_go(self) -> None:
        """Returns when the page has drawn what was held."""
        self.wait_for("snapshot")
        self.holds = False
        for route, text in self.kept:
            route.send(text)
        self.page.evaluate(DRAWN)


def _live(page: Page) -> None:
    """The line is; the scheduler of `_trouble` is away."""
    expect(page.locator("#connection")).to_have_attribute("data-state", re.compile("live|away"))


@pytest.fixture
def made(site):
    card, made = scenes.a_busy_card()
    scenes.a_life(made["c"], card)
    return made


def _trouble() -> None:
    """Of which two banners tell: they move whatever stands below them."""
    rows.node(engine_error="Cannot connect to the Docker daemon", seen_at=rows.ago(60))


@pytest.mark.parametrize("name", PAGES)
def test_what_is_pressed_while_the_first_snapshot_comes_is_clicked(site, open_as, made, name):
    page = open_as("me", "/login/", role="admin")
    held = Held(page)
    page.goto(address(name, made))
    _trouble()
    held.wait_for("Docker daemon")
    page.mouse.move(*page.evaluate(AIM, ANY))
    page.mouse.down()
    held.let_go()
    page.mouse.up()
    assert page.evaluate("window.clicked")
    _live(page)  # and what waited is drawn


def test_what_is_pressed_before_the_scripts_begin_is_clicked(site, open_as, made):
    page = open_as("me", "/login/", role="admin")
    held = Held(page)
    waiting = []
    page.route("**/gpushare/app.js", lambda route: waiting.append(route))
    page.goto(address("overview", made), wait_until="commit")
    page.locator("#rows tr[data-id]").last.wait_for()
    page.mouse.move(*page.evaluate(AIM, ANY))
    page.mouse.down()
    waiting[0].continue_()
    held.let_go()
    page.mouse.up()
    assert page.evaluate("window.clicked")
    _live(page)


def test_what_is_tapped_while_the_first_snapshot_comes_is_clicked(site, open_as, made):
    page = open_as("me", "/login/", role="admin", size="phone")
    finger = page.context.new_cdp_session(page)
    finger.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    held = Held(page)
    page.goto(address("container", made))
    _trouble()
    held.wait_for("Docker daemon")
    x, y = page.evaluate(AIM, ANY)
    finger.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    held.let_go()
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_function("window.clicked")
    _live(page)


def test_what_is_pressed_while_a_part_of_the_page_is_renewed_is_clicked(site, open_as, made):
    page = open_as("me", address("container", made), role="admin")
    page.locator("#held canvas").wait_for()
    _live(page)
    asked: list[Route] = []
    page.route(page.url, lambda route: route.continue_() if asked else asked.append(route))
    with page.expect_request(page.url):
        now = timezone.now()
        Container.objects.filter(pk=made["c"].pk).update(gave_way="idle", gave_way_to="notebook", paused_at=now)
    page.mouse.move(*page.evaluate(AIM, ".change button"))
    page.mouse.down()
    with page.expect_response(page.url):
        asked[0].continue_()
    page.evaluate(DRAWN)
    page.mouse.up()
    assert page.evaluate("window.clicked")
    expect(page.locator("#gave-way")).to_contain_text("notebook")


@pytest.mark.parametrize("size", ["wide", "phone"])
# The cards and the waiting come by the live line: what stands below them on the overview and the queue's page is moved.
@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("overview", "queue")])
def test_nothing_that_is_pressed_moves_when_the_first_snapshot_comes(site, open_as, made, name, size):
    _trouble()
    page = open_as("me", "/login/", role="admin", size=size)
    held = Held(page)
    page.goto(address(name, made))
    if name == "container":
        page.locator("#held canvas").wait_for()
    elif name == "history":
        page.locator("#replay[data-ready]").wait_for()
    before = page.evaluate(PLACES)
    held.let_go()
    _live(page)
    assert page.evaluate(PLACES) == before
