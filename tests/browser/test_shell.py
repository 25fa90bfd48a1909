"""A shell in a container, in the browser, on a whole appliance: real scheduler, real processes."""

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.test_whole_path import SOON, appliance, page, running
from tests.support.appliance import Appliance, until
from tests.support.running import runs, seconds

__all__ = ["appliance", "page", "running"]
SCREEN = "#terminal .xterm-rows"

# How many pixels higher a row is than its letters with all that hangs below the line, as an underscore does.
ROOM_FOR_WHAT_HANGS = """() => {
    const row = document.querySelector("#terminal .xterm-rows > div");
    const pen = document.createElement("canvas").getContext("2d");
    const { fontSize, fontFamily } = getComputedStyle(row);
    pen.font = `${fontSize} ${fontFamily}`;
    const { fontBoundingBoxAscent, fontBoundingBoxDescent } = pen.measureText("_g");
    return row.getBoundingClientRect().height - Math.ceil(fontBoundingBoxAscent) - Math.ceil(fontBoundingBoxDescent);
}"""


def test_a_shell_is_opened_typed_into_resized_and_gone_with_its_page(
    page: Page, appliance: Appliance, shot: Callable[..., Path]
) -> None:
    made = appliance.launch("sleep", "3600", name="quiet", working_dir="/usr")
    page.goto(f"/containers/{made['id']}/")
    page.get_by_role("link", name="Shell").click()
    expect(page.locator("#console-status")).to_have_text("A shell in quiet.", timeout=SOON)
    page.keyboard.type("echo in $PWD; basename $LD_PRELOAD\n")
    expect(page.locator(SCREEN)).to_contain_text("in /usr", timeout=SOON)
    expect(page.locator(SCREEN)).to_contain_text("libgpushare", timeout=SOON)
    assert page.evaluate(ROOM_FOR_WHAT_HANGS) >= 0, "a row cuts its letters off below"
    page.keyboard.type("stty size\n")
    expect(page.locator(SCREEN)).to_contain_text(re.compile(r"[345]\d 1\d\d"), timeout=SOON)
    page.set_viewport_size({"width": 400, "height": 800})
    page.keyboard.type("clear; until [ $(stty size | cut -d' ' -f2) -lt 60 ]; do sleep 0.1; done; echo narrow\n")
    expect(page.locator(SCREEN)).to_contain_text("narrow", timeout=SOON)
    shot(page, "shell-narrow", whole=False)
    page.set_viewport_size({"width": 1440, "height": 900})
    long = seconds()
    page.keyboard.type(f"sleep {long}\n")
    until(lambda: runs("sleep", long))
    page.goto("/")
    until(lambda: not runs("sleep", long))
    assert appliance.named("quiet")["state"] == "running"


def test_its_exit_code_is_reported_and_another_can_be_opened(page: Page, appliance: Appliance) -> None:
    made = appliance.launch("sleep", "3600", name="again")
    page.goto(f"/containers/{made['id']}/shell/")
    expect(page.locator("#console-status")).to_have_text("A shell in again.", timeout=SOON)
    page.keyboard.type("exit 3\n")
    expect(page.locator("#console-status")).to_have_text("The shell has ended with exit code 3.", timeout=SOON)
    page.get_by_role("button", name="New shell").click()
    page.keyboard.type("echo back $((1 + 1))\n")
    expect(page.locator(SCREEN)).to_contain_text("back 2", timeout=SOON)
    appliance.api("POST", f"containers/{made['id']}/kill/", {})
    expect(page.locator("#console")).to_have_attribute("data-line", re.compile("ended|refused|cut"), timeout=SOON)


def test_what_prints_without_end_leaves_the_page_answering(page: Page, appliance: Appliance) -> None:
    made = appliance.launch("sleep", "3600", name="loud")
    page.goto(f"/containers/{made['id']}/shell/")
    expect(page.locator("#console-status")).to_have_text("A shell in loud.", timeout=SOON)
    page.keyboard.type("yes\n")
    expect(page.locator(SCREEN)).to_contain_text(re.compile("yy"), timeout=SOON)
    page.keyboard.press("Control+c")
    page.keyboard.type("clear; echo quiet $((20 + 3))\n")
    expect(page.locator(SCREEN)).to_contain_text("quiet 23", timeout=2 * SOON)
