"""The live line: what happens when numbers are missed, when it breaks, and when the scheduler falls silent."""

import json
import re
from itertools import pairwise

from django.contrib.sessions.models import Session
from django.utils import timezone
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from tests.support import rows
from tests.support.site import person
from web.models import Container


class Line:
    """Stands between the page and the server, and can drop, hold and cut."""

    def __init__(self, page) -> None:
        self.heard: list[dict] = []
        self.asked: list[dict] = []
        self.drop_next_delta = self.dead = False
        self.routes: list[WebSocketRoute] = []
        page.route_web_socket("**/ws/dashboard/", self._connect)

    def _connect(self, route: WebSocketRoute) -> None:
        if self.dead:
            route.close()
            return
        self.routes.append(route)
        server = route.connect_to_server()
        route.on_message(lambda text: (self.asked.append(json.loads(text)), server.send(text)))
        server.on_message(lambda text: self._pass(route, text))

    def _pass(self, route: WebSocketRoute, text: str) -> None:
        message = json.loads(text)
        if self.dead:
            return
        if self.drop_next_delta and message["type"] == "delta":
            self.drop_next_delta = False
            return
        self.heard.append(message)
        route.send(text)

    def cut(self) -> None:
        self.dead = True
        self.routes.pop().close()


def opened(open_as) -> tuple[Page, Line]:
    """The overview, whose live line passes through what is returned beside it."""
    page = open_as("ann", "/login/")
    line = Line(page)
    page.goto("/")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    return page, line


def test_deltas_are_numbered_without_a_gap(site, open_as):
    made = rows.container("train-7", person("ann"), rows.gpu(), used=0.5)
    page, line = opened(open_as)
    for mebibytes in (100, 200, 300, 400):
        made.claims.update(used=mebibytes * 2**20)
        expect(page.locator('[data-field="figures"]')).to_contain_text(f"{mebibytes} MiB / 1 GiB")
    assert line.heard[0]["type"] == "snapshot"
    assert "delta" in {message["type"] for message in line.heard}
    for before, message in pairwise(each for each in line.heard if each["type"] in ("snapshot", "delta")):
        # A page that was slow may have asked for everything again: then they go on from there.
        assert message["type"] == "snapshot" or message["seq"] == before["seq"] + 1


def test_a_row_follows_where_no_frames_come_as_in_a_hidden_page(site, open_as):
    """What would wait for the next frame there is kept, one for each change, for as long as the page is hidden."""
    made = rows.container("train-7", person("ann"), rows.gpu(), used=0.5)
    page = open_as("ann", "/login/")
    page.add_init_script("window.requestAnimationFrame = () => 0")
    page.goto("/")
    Container.objects.filter(pk=made.pk).update(paused_at=timezone.now())
    expect(page.locator(f'tr[data-id="{made.pk}"]')).to_have_attribute("data-state", "paused")


def test_a_missed_number_is_noticed_and_everything_is_asked_for_again(site, open_as):
    made = rows.container("train-7", person("ann"), rows.gpu(), used=0.1)
    page, line = opened(open_as)
    line.drop_next_delta = True
    made.claims.update(used=0.5 * rows.GIB)
    expect(page.locator('[data-field="figures"]')).to_contain_text("512 MiB / 1 GiB")
    assert {"type": "resync"} in line.asked


def test_a_lost_connection_is_reported_with_the_age_of_what_is_seen_and_comes_back(site, open_as, shot):
    made = rows.container("train-7", person("ann"), rows.gpu(), used=0.1)
    page, line = opened(open_as)
    line.cut()
    expect(page.locator("#banner-lost")).to_contain_text("Connection lost. The data below is")
    made.claims.update(used=0.5 * rows.GIB)
    expect(page.locator("#banner-lost")).to_contain_text(re.compile(r"([3-9]|\d\d) s old"))  # each a second long
    expect(page.locator('[data-field="figures"]')).to_contain_text("102.4 MiB / 1 GiB")
    assert "stale" in (page.locator("body").get_attribute("class") or "")
    shot(page, "connection-lost", whole=False)
    line.dead = False
    expect(page.locator("#banner-lost")).to_be_hidden()
    expect(page.locator('[data-field="figures"]')).to_contain_text("512 MiB / 1 GiB")


def test_a_line_that_only_falls_silent_is_noticed_too(site, open_as):
    rows.gpu()
    page, line = opened(open_as)
    line.dead = True
    expect(page.locator("#banner-lost")).to_be_visible()


def test_a_silent_scheduler_is_shown(site, open_as):
    rows.gpu()
    page = open_as("ann", role="user")
    expect(page.locator("#banner-scheduler")).to_be_hidden()
    rows.node(seen_at=rows.ago(60))
    expect(page.locator("#banner-scheduler")).to_contain_text("does not answer")
    expect(page.locator("#connection")).to_have_text("Scheduler away")  # and no more "Live"


def test_an_engine_that_is_away_is_shown(site, open_as):
    rows.gpu()
    rows.node(engine_error="Cannot connect to the Docker daemon")
    page = open_as("ann", role="user")
    expect(page.locator("#banner-engine")).to_contain_text("Cannot connect to the Docker daemon")


def test_ages_go_by_the_servers_clock(site, open_as):
    rows.container("late", person("ann"), rows.gpu(), suspended_since=rows.ago(75))
    page = open_as("ann", "/login/")
    page.clock.install(time=0)  # a browser that believes it is 1970
    page.goto("/")
    expect(page.locator('[data-field="suspended"]')).to_contain_text(re.compile("[1-3] min"))


def test_a_server_that_is_slow_to_say_its_first_word_is_given_longer_each_time(site, open_as):
    """Or a page that gives up after six seconds never hears one that needs seven, and makes it begin anew each time."""
    rows.gpu()
    page, line = opened(open_as)
    first_word = json.dumps(line.heard[0])
    sockets: list[WebSocketRoute] = []  # to a server that says nothing: the real one would take its own time

    def comes(count: int) -> None:
        while len(sockets) < count:
            page.clock.run_for(250)
            page.wait_for_timeout(20)

    page.route_web_socket("**/ws/dashboard/", lambda route: sockets.append(route))
    page.clock.install(time=0)
    page.clock.pause_at(1000)  # its time goes on by `run_for` alone, however slow this machine is
    page.goto("/")
    comes(1)
    page.clock.run_for(6_500)
    comes(2)
    page.clock.run_for(8_000)
    sockets[1].send(first_word)
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    assert len(sockets) == 2


def test_a_page_that_hears_that_its_session_is_over_breaks_off_nothing_that_was_sent(site, open_as):
    """The change of a password ends the sessions that there are; its own answer, with the next one, may come later."""
    rows.node()
    page = open_as("ann", "/me/")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    sent: list[Route] = []
    page.route("**/me/password/", lambda route: sent.append(route))
    for label in ("Current password", "New password", "New password again"):
        page.get_by_label(label, exact=True).fill("another long password")
    page.get_by_role("button", name="Change the password").click(no_wait_after=True)
    while not sent:
        page.wait_for_timeout(20)
    with page.expect_websocket():  # it tries again, and does not go to where one signs in
        Session.objects.all().delete()
    sent[0].fulfill(body="It is another one now.", content_type="text/html")
    expect(page.locator("body")).to_have_text("It is another one now.")
