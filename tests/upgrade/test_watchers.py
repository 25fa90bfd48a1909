"""Who looks on while the host is upgraded: terminals and dashboards come back by themselves, and show the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import chromium
from tests.browser.test_three_people import SOON, sign_in
from tests.cli.support import ENTRY, environment
from tests.support.appliance import WORKLOAD, Appliance, until
from tests.support.dockerd import IMAGE, dockerd
from tests.support.terminal import Terminal
from tests.upgrade.lab import LAST, SETTINGS
from tests.upgrade.test_upgrade import manage, stop

__all__ = ["chromium", "dockerd"]
# Each row's name, state, and what it holds of what.
TABLE = """() => [...document.querySelectorAll("tr[data-id]")].map((row) => [row.dataset.name, row.dataset.state,
    row.querySelector('[data-field="figures"]').textContent]).sort()"""
SCREEN = "#terminal .xterm-rows"


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Appliance]:
    more: dict[str, str] = {}
    if engine := getattr(request, "param", None):
        address = request.getfixturevalue(engine).address
        more = {"GPUSHARE_ENGINE": "docker", "GPUSHARE_DOCKER_HOST": address}
    appliance = Appliance(tmp_path / "home", **{**SETTINGS, **more})
    yield appliance
    appliance.close()


on_docker = pytest.mark.parametrize("lab", ["dockerd"], indirect=True)


@pytest.fixture
def page(lab: Appliance, chromium: Browser) -> Iterator[Page]:
    """Somebody's, signed in, who loads nothing a second time."""
    context = chromium.new_context(base_url=lab.url, viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(SOON)
    page = context.new_page()
    page.goto("/")
    sign_in(page, "admin", lab.token)
    yield page
    context.close()


def upgrade(lab: Appliance) -> None:
    """From a database of the last release."""
    stop(lab)
    back = manage(lab.home, "migrate", "web", LAST)
    assert back.returncode == 0, back.stderr
    lab.start()


def shell(lab: Appliance) -> dict[str, Any]:
    return lab.launch("sh", image=IMAGE, name="shell", interactive=True, tty=True)


@pytest.mark.browser
def test_a_dashboard_comes_back_and_shows_the_same(lab: Appliance, page: Page) -> None:
    for name in ("one", "two", "three"):
        command = [WORKLOAD, "--bytes", "2GiB", "--chunks", "1", "--hold", "3600"]
        lab.launch(*command, name=name, gpu_memory="2200MiB")
        wanted = "suspended" if name == "three" else "running"
        until(lambda name=name, wanted=wanted: lab.named(name)["state"] == wanted)
    page.goto("/")
    until(lambda: len(page.evaluate(TABLE)) == 3 and page.evaluate(TABLE)[1][1] == "suspended")
    shown = page.evaluate(TABLE)
    page.evaluate("window.opened = 'once'")

    upgrade(lab)

    expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=SOON)
    until(lambda: page.evaluate(TABLE) == shown)
    assert page.evaluate("window.opened") == "once"
    lab.api("POST", f"containers/{lab.named('one')['id']}/kill/", {})
    expect(page.locator('tr[data-name="three"]')).to_have_attribute("data-state", "running", timeout=SOON)


@pytest.mark.docker
@on_docker
def test_an_open_terminal_comes_back_with_the_shell_as_it_was(lab: Appliance) -> None:
    with Terminal([*ENTRY, "run", "-it", "--name", "shell", IMAGE, "sh"], environment(lab.environ)) as terminal:
        terminal.until("# ")
        terminal.type('word=still; echo rea""dy\r')
        terminal.until("ready\r\n")
        upgrade(lab)
        terminal.until("gpushare: connected again\r\n")
        terminal.type("echo $word $((1 + 1)); exit 7\r")
        terminal.until("still 2\r\n")
        assert terminal.exit_code() == 7


@pytest.mark.docker
@pytest.mark.browser
@on_docker
def test_an_open_terminal_in_a_browser_comes_back_with_the_shell_as_it_was(lab: Appliance, page: Page) -> None:
    page.goto(f"/containers/{shell(lab)['id']}/console/")
    console = page.locator("#console")
    expect(console).to_have_attribute("data-line", "open")
    page.keyboard.type("word=still; echo rea''dy\n")
    expect(page.locator(SCREEN)).to_contain_text("ready")

    stop(lab)
    expect(console).to_have_attribute("data-line", "away")
    expect(page.locator("#console-status")).to_contain_text("shell goes on, and this comes back by itself")
    page.keyboard.type("echo $word $((1 + 1))\n")
    lab.start()

    expect(console).to_have_attribute("data-line", "open", timeout=SOON)
    expect(page.locator(SCREEN)).to_contain_text("still 2")
    expect(page.locator(SCREEN)).to_contain_text("ready")  # what stood there stands there still
