"""A terminal in the browser: what is typed arrives, what comes is shown, and the keyboard can leave it."""

import re
import time

import pytest
from playwright.sync_api import expect

from tests.browser.test_pages import _look_at
from tests.support import rows
from tests.support.eventually import until
from tests.support.keyboards import keyboards
from tests.support.site import person
from web.console.frames import WINDOW, FrameKind
from web.models import AuditEntry

SCREEN = "#terminal .xterm-rows"
# What was shown is no longer sent: to the server, a browser that does not get round to showing it.
STANDS_STILL = """() => {
  window.held = [];
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (data) {
    if (new Uint8Array(data)[0] === 5) window.held.push(() => send.call(this, data));
    else send.call(this, data);
  };
}"""


@pytest.fixture
def shell(site):
    return rows.container("shell", person("ann"), rows.gpu(), interactive=True, tty=True)


def opened(open_as, container, size="wide", **more):
    page = open_as("ann", f"/containers/{container.pk}/console/", size=size, **more)
    expect(page.locator("#console")).to_have_attribute("data-line", "open")
    return page


def test_what_is_typed_arrives_and_the_answer_is_shown(site, open_as, shell, shot):
    with keyboards(site.home, "/bin/sh") as scheduler:
        page = open_as("ann", f"/containers/{shell.pk}/")
        page.get_by_role("link", name="Console").click()
        expect(page.locator("#console-status")).to_have_text("Connected to shell.")
        page.keyboard.type("echo $((6 * 7)) grün\n")
        expect(page.locator(SCREEN)).to_contain_text("42 grün")
        assert scheduler.said == [(FrameKind.OPEN, str(shell.pk))]
        page.keyboard.type("printf '\\033[38;2;200;30;30mtrue colour\\033[0m \\033[42mgreen\\033[0m\\n'\n")
        expect(page.locator(SCREEN)).to_contain_text("true colour green")
        red = page.locator(f"{SCREEN} span", has_text=re.compile("^true colour"))
        assert red.evaluate("span => getComputedStyle(span).color") != page.locator(SCREEN).evaluate(
            "rows => getComputedStyle(rows).color"
        )
        _look_at(page, shot, "console")
        page.keyboard.type("exit\n")
        expect(page.locator("#console-status")).to_have_text("The container has ended.")
    actions = AuditEntry.objects.filter(subject=str(shell.pk)).order_by("id").values_list("action", flat=True)
    until(lambda: list(actions.all()) == ["console-opened", "console-closed"])


def test_the_program_learns_the_size_of_the_window_and_its_changes(site, open_as, shell):
    with keyboards(site.home, "/bin/sh") as _:
        page = opened(open_as, shell)
        page.keyboard.type("stty size\n")
        expect(page.locator(SCREEN)).to_contain_text(re.compile(r"[345]\d 1\d\d#"))
        page.set_viewport_size({"width": 700, "height": 700})
        page.keyboard.type("clear; until [ $(stty size | cut -d' ' -f2) -lt 100 ]; do sleep 0.1; done; echo narrow\n")
        expect(page.locator(SCREEN)).to_contain_text("narrow")


def test_the_keyboard_can_leave_the_terminal(site, open_as, shell):
    with keyboards(site.home, "/bin/sh") as _:
        page = opened(open_as, shell)
        inside = "document.getElementById('terminal').contains(document.activeElement)"
        assert page.evaluate(inside)
        page.keyboard.press("Tab")  # it is the program's
        assert page.evaluate(inside)
        page.keyboard.press("Shift+F6")
        expect(page.get_by_role("link", name="Leave")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#container")).to_be_visible()


def test_a_program_that_prints_without_end_waits_for_a_browser_that_stands_still(site, open_as, shell):
    with keyboards(site.home, "yes") as scheduler:
        page = opened(open_as, shell)
        expect(page.locator(SCREEN)).to_contain_text("y")
        page.evaluate(STANDS_STILL)
        before = until(lambda: _stands(scheduler))

        def goes_on() -> bool:
            page.evaluate("() => { for (const go of window.held) go(); window.held = []; }")
            return scheduler.sent > before + WINDOW // 2

        until(goes_on)  # what comes to a stand only after it was let go is let go, too


def _stands(scheduler):
    """How much was sent, once it is no more for a while."""
    before = scheduler.sent
    time.sleep(0.5)
    return before if scheduler.sent == before else 0


def test_a_broken_connection_is_reported_and_comes_back_with_what_was_typed_meanwhile(site, open_as, shell, shot):
    with keyboards(site.home, "/bin/sh") as scheduler:
        page = opened(open_as, shell)
        page.keyboard.type("echo rea''dy\n")
        expect(page.locator(SCREEN)).to_contain_text("ready")
        scheduler.go_away()
        expect(page.locator("#console")).to_have_attribute("data-line", "away")
        expect(page.locator("#console-status")).to_have_text("Connection lost. shell keeps running. Reconnecting.")
        _look_at(page, shot, "console-away")
        page.keyboard.type("echo $((6 * 7))\n")
    with keyboards(site.home, "/bin/sh") as _:
        expect(page.locator("#console")).to_have_attribute("data-line", "open")
        expect(page.locator(SCREEN)).to_contain_text("42")
        expect(page.locator(SCREEN)).to_contain_text("ready")


def test_a_container_that_ended_meanwhile_is_not_connected_to_again(site, open_as, shell):
    with keyboards(site.home, "/bin/sh") as scheduler:
        page = opened(open_as, shell)
        page.keyboard.type("exit\n")
        expect(page.locator("#console-status")).to_have_text("The container has ended.")
        scheduler.go_away()
        expect(page.get_by_role("button", name="Connect again")).to_be_visible()
        assert len(scheduler.said) == 1


def test_what_is_typed_while_it_connects_arrives(site, open_as, shell):
    with keyboards(site.home, "/bin/sh") as _:
        page = opened(open_as, shell)
        page.keyboard.type("exit\n")
        expect(page.get_by_role("button", name="Connect again")).to_be_visible()
        page.evaluate("""() => {
          document.getElementById("console-again").click();
          const clipboardData = new DataTransfer();
          clipboardData.setData("text/plain", "echo $((6 * 7))\\n");
          const paste = new ClipboardEvent("paste", { clipboardData, bubbles: true });
          document.querySelector("#terminal textarea").dispatchEvent(paste);
        }""")
        expect(page.locator(SCREEN)).to_contain_text("42")


def test_who_may_not_sees_why(site, open_as, shell):
    with keyboards(site.home, "/bin/sh") as scheduler:
        page = open_as("eve", f"/containers/{shell.pk}/console/", role="user")
        expect(page.locator("#console-status")).to_have_text(
            'You may not use the console of "shell": it belongs to ann.'
        )
        expect(page.get_by_role("button", name="Connect again")).to_be_visible()
        assert scheduler.said == []


@pytest.mark.parametrize("where", ["overview", "container"])
def test_no_other_page_loads_the_terminal(site, open_as, shell, where):
    page = open_as("ann")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/" if where == "overview" else f"/containers/{shell.pk}/")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    assert asked
    assert not [url for url in asked if "xterm" in url or "console" in url]
