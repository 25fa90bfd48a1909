"""What three people come for, played by a real browser on a whole appliance; how long each took is printed.

A newcomer signs in, finds out what this is, launches something from the form, finds its output and ends it. A student
launches more than there is room for, sees why and for whom it waits, is served, and sees the wait in the history. An
admin is told who blocks whom, frees that memory without ending anybody, changes an allowance, and takes a report home.

    python -m pytest -s tests/browser/test_three_people.py
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.appliance import ROOT, WORKLOAD, Appliance, http, until

SOON = 60_000  # milliseconds; only a test that fails waits so long
PASSWORD = "a long enough password"
PEOPLE = """
from django.contrib.auth.models import Group, User
for name in ("newcomer", "student@example.org", "postdoc"):
    person = User.objects.create_user(name, password="{password}")
    person.groups.add(Group.objects.get(name="user"))
"""


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    path = f"{Path(WORKLOAD).parent}:{os.environ['PATH']}"
    home = tmp_path_factory.mktemp("three") / "var"
    running = Appliance(home, gpus="sim:1x5GiB", GPUSHARE_POLICY="fair", PATH=path)
    try:
        command = [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c", PEOPLE.format(password=PASSWORD)]
        subprocess.run(command, check=True, env={**os.environ, "GPUSHARE_HOME": str(home)})
        yield running
    finally:
        running.close()


@pytest.fixture
def opened(appliance: Appliance, chromium: Browser) -> Iterator[Callable[[], Page]]:
    contexts = []

    def open_page() -> Page:
        context = chromium.new_context(
            viewport={"width": 1440, "height": 900}, base_url=appliance.url, reduced_motion="reduce"
        )
        context.set_default_timeout(SOON)
        contexts.append(context)
        page = context.new_page()
        page.goto("/")
        return page

    yield open_page
    for context in contexts:
        context.close()
    appliance.end_all()
    until(lambda: not appliance.containers())


@contextmanager
def task(person: str, what: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    print(f"\n{person:9} {what}: {time.monotonic() - begun:.1f} s", end="", flush=True)


def sign_in(page: Page, name: str, password: str = PASSWORD) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=SOON)


def launch(page: Page, name: str, quota: str, command: str) -> None:
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Launch").click()
    expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=SOON)
    page.locator("#f-image").fill("local")
    page.get_by_role("textbox", name="Command").fill(command)
    page.locator("#f-gpu_memory").fill(quota)
    page.get_by_label("Name", exact=True).fill(name)


def press_launch(page: Page, name: str) -> None:
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible(timeout=SOON)


def in_state(page: Page, state: str) -> None:
    expect(page.locator("#container")).to_have_attribute("data-state", state, timeout=SOON)


def test_a_newcomer_launches_something_finds_its_output_and_ends_it(opened: Callable[[], Page]) -> None:
    page = opened()
    with task("newcomer", "signs in"):
        sign_in(page, "newcomer")
    with task("newcomer", "understands what there is"):
        expect(page.locator("#calm")).to_have_text("Nothing needs anybody now.")
        expect(page.locator(".card .held")).to_contain_text("5 GiB free + 0 GiB elsewhere = 5 GiB", timeout=SOON)
        expect(page.locator("#no-queue")).to_contain_text("No container is waiting.")
        expect(page.get_by_role("link", name="Launch the first one")).to_be_visible()
    with task("newcomer", "launches from the form"):
        launch(page, "first-steps", "1GiB", 'sh -c "echo hello from the card; workload --bytes 512MiB --hold 600"')
        expect(page.locator("#forecast")).to_have_text("Fits now.", timeout=SOON)
        press_launch(page, "first-steps")
        in_state(page, "running")
    with task("newcomer", "finds the output"):
        expect(page.locator("#log")).to_contain_text("hello from the card", timeout=SOON)
        expect(page.locator('[data-field="used"]')).to_contain_text("MiB", timeout=SOON)
        expect(page.locator('[data-field="host"]')).to_contain_text("of RAM", timeout=SOON)
    with task("newcomer", "ends it"):
        page.get_by_role("button", name="Kill").click()
        page.get_by_role("dialog").get_by_role("button", name="Kill").click()
        in_state(page, "killed")


def test_a_student_sees_why_a_launch_waits_is_served_and_finds_the_wait_in_the_history(
    opened: Callable[[], Page], appliance: Appliance
) -> None:
    holder = appliance.launch("workload", "--bytes", "4GiB", "--check", "1MiB", "--hold", "600", name="holder",
                              gpu_memory="4352MiB")  # fmt: skip
    until(lambda: sum(each["used"] for each in appliance.named("holder")["gpus"]) > 4 << 30)
    page = opened()
    sign_in(page, "student@example.org")
    with task("student", "launches beyond what is free"):
        launch(page, "thesis", "2GiB", "workload --bytes 1536MiB --check 1MiB --hold 600")
        expect(page.locator("#forecast")).to_contain_text("GPU 0 lacks", timeout=SOON)
        press_launch(page, "thesis")
        in_state(page, "suspended")
    with task("student", "sees why it waits, and for whom"):
        expect(page.locator('[data-field="waiting"]')).to_contain_text("1 in the queue", timeout=SOON)
        expect(page.locator('[data-field="waiting"]')).to_contain_text("Next when holder ends", timeout=SOON)
    with task("student", "is served once the holder ends"):
        appliance.api("POST", f"containers/{holder['id']}/kill/", {})
        in_state(page, "running")
        expect(page.locator('[data-field="waiting"]')).to_be_empty(timeout=SOON)
    with task("student", "finds the wait in the history"):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name="History").click()
        page.locator("#replay[data-ready]").wait_for()
        mark = page.locator("#marks li", has_text="thesis").first
        expect(mark).to_contain_text("waited")
        expect(mark).to_contain_text("student@example.org")
        mark.get_by_role("link", name="thesis").click()
        expect(page.locator(".life .stretch.suspended").first).to_be_attached()


def test_an_admin_frees_what_blocks_others_changes_an_allowance_and_takes_a_report_home(
    opened: Callable[[], Page], appliance: Appliance
) -> None:
    for other in ("newcomer", "student@example.org"):  # the other tests may be another worker's
        signed_in = http.post(f"{appliance.url}/api/v1/sign-in/", json={"username": other, "password": PASSWORD})
        body = {"image": "local", "command": ["workload", "--bytes", "64MiB", "--hold", "2"], "gpu_memory": "256MiB"}
        token = {"Authorization": f"Token {signed_in.raise_for_status().json()['key']}"}
        http.post(f"{appliance.url}/api/v1/containers/", json=body, headers=token).raise_for_status()
    until(lambda: not appliance.containers())
    blocker = appliance.launch("workload", "--bytes", "4GiB", "--check", "1MiB", "--hold", "600", name="blocker",
                               gpu_memory="4352MiB")  # fmt: skip
    until(lambda: sum(each["used"] for each in appliance.named("blocker")["gpus"]) > 4 << 30)
    appliance.api("POST", f"containers/{blocker['id']}/pause/", {})
    appliance.launch("workload", "--bytes", "1536MiB", "--check", "1MiB", "--hold", "600", name="waiter",
                              gpu_memory="2GiB")  # fmt: skip
    page = opened()
    sign_in(page, "admin", appliance.token)
    with task("admin", "is told who blocks whom"):
        item = page.locator("#attention li li", has_text='"blocker" is paused and holds')
        expect(item).to_contain_text('"waiter" waits for memory', timeout=SOON)
    with task("admin", "frees the memory, and nobody ends"):
        item.get_by_role("button", name="Free its memory").click()
        page.get_by_role("dialog").get_by_role("button", name="Free its memory").click()
        row = page.locator("tr[data-id]", has=page.get_by_role("link", name="waiter", exact=True))
        expect(row).to_have_attribute("data-state", "running", timeout=60_000)
        expect(page.locator("tr[data-id]", has=page.get_by_role("link", name="blocker", exact=True))).to_have_attribute(
            "data-state", "swapped", timeout=SOON
        )
        expect(item).to_have_count(0, timeout=SOON)
    with task("admin", "changes an allowance"):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name="People").click()
        page.get_by_role("link", name="newcomer").first.click()
        page.get_by_role("textbox", name="Containers").fill("2")
        page.get_by_role("button", name="Save the allowance").click()
        expect(page.locator(".banner.good")).to_be_visible(timeout=SOON)
        expect(page.get_by_text("Set for this person.").first).to_be_visible()
    with task("admin", "reads a report and takes it home as CSV"):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name="Reports").click()
        expect(page.locator("table.report tbody tr", has_text="student@example.org")).to_be_visible()
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        with download.value.path().open() as file:
            groups = {line["group"] for line in csv.DictReader(file)}
        assert {"newcomer", "student@example.org", "admin"} <= groups
