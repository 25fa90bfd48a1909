"""The newcomer's path, by clicks, on a whole appliance: real scheduler, real processes, a simulated card.

Launch two containers whose quotas together pass the card, watch the second be suspended and resume, pause, kill. What
each page does by itself is tested with rows alone, in the files beside this one. The screenshots of docs/guide.md and
of the README are made here.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import GOOD_NEWS_STAYS, PATIENT
from tests.support.appliance import WORKLOAD, Appliance, until

SOON = 60_000  # milliseconds; only a test that fails waits so long


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    path = f"{Path(WORKLOAD).parent}:{os.environ['PATH']}"  # so that the command is "workload" on every machine
    home = tmp_path_factory.mktemp("whole") / "var"
    appliance = Appliance(home, gpus="sim:1x5GiB", GPUSHARE_POLICY="fair", PATH=path, **PATIENT)
    yield appliance
    appliance.close()


@pytest.fixture
def appliance(running: Appliance) -> Iterator[Appliance]:
    yield running
    running.end_all()


@pytest.fixture
def page(appliance: Appliance, chromium: Browser) -> Iterator[Page]:
    """The admin, who has signed in by the form."""
    context = chromium.new_context(
        viewport={"width": 1440, "height": 900}, base_url=appliance.url, reduced_motion="reduce"
    )
    context.set_default_timeout(SOON)
    context.add_init_script(GOOD_NEWS_STAYS)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Name").fill("admin")
    page.get_by_label("Password").fill(appliance.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=SOON)
    yield page
    context.close()


def row(page: Page, name: str):
    return page.locator("tr[data-id]", has=page.get_by_role("link", name=name, exact=True))


def in_state(page: Page, name: str, state: str) -> None:
    expect(row(page, name)).to_have_attribute("data-state", state, timeout=SOON)


def launch(page: Page, name: str, quota: str, *options: str) -> None:
    """As a person does it, by the form."""
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Launch").click()
    page.wait_for_url("**/launch/**")  # its scripts have run
    page.locator("#f-image").fill("local")
    page.get_by_role("textbox", name="Command").fill(" ".join(("workload", *options)))
    page.locator("#f-gpu_memory").fill(quota)
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(page.get_by_role("heading", name=name)).to_be_visible(timeout=SOON)


def overview(page: Page) -> None:
    page.get_by_role("link", name="Overview", exact=True).click()
    expect(page.locator(".card .chart canvas")).to_be_visible(timeout=SOON)


def test_a_newcomer_launches_watches_pauses_and_ends_a_container(
    page: Page, appliance: Appliance, shot: Callable[..., Path]
) -> None:
    """docs/guide.md, click by click, on what `make demo` leaves behind."""
    held = appliance.launch("workload", "--check", "16MiB", "--hold", "3600", name="demo-a", gpu_memory="1792MiB")
    for name, quota, *chunks in (("b", 1792), ("c", 2304, "--chunks", "3"), ("d", 2048, "--chunks", "1")):
        options = ("--check", "16MiB", *chunks, "--hold", "0")
        appliance.launch("workload", *options, name=f"demo-{name}", gpu_memory=f"{quota}MiB")
    until(lambda: [each["name"] for each in appliance.containers()] == ["demo-a"])
    appliance.api("POST", f"containers/{held['id']}/kill/", {})
    until(lambda: not appliance.containers())
    page.reload()
    in_state(page, "demo-a", "killed")
    in_state(page, "demo-d", "exited")
    expect(page.locator(".card .chart canvas")).to_be_visible(timeout=SOON)
    shot(page, "guide-1-after-the-demo", whole=False)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Launch").click()
    page.wait_for_url("**/launch/**")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=SOON)  # its scripts have run
    page.get_by_label("Start from").select_option("demo-a: local workload --check 16MiB --hold 3600")
    command = page.get_by_role("textbox", name="Command")
    expect(command).to_have_value("workload --check 16MiB --hold 3600")
    command.fill("workload --check 16MiB --hold 600")
    page.locator("#f-gpu_memory").fill("3GiB")
    page.get_by_label("Name", exact=True).fill("first")
    expect(page.locator(".verdict").first).to_contain_text("fits")
    expect(page.locator("#forecast")).to_have_text("Fits now.", timeout=SOON)
    shot(page, "guide-2-launch", whole=False)
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(page.get_by_role("heading", name="first")).to_be_visible(timeout=SOON)
    launch(page, "second", "4GiB", "--hold", "600", "--check", "1MiB")
    overview(page)
    in_state(page, "first", "running")
    in_state(page, "second", "suspended")
    expect(page.locator("#queue .name")).to_have_text(["second"])
    expect(page.locator("#queue .why")).to_contain_text("Next when first ends")
    shot(page, "guide-3-suspended", whole=False)

    row(page, "first").get_by_role("button", name="Pause").click()
    expect(page.locator(".toast.good")).to_contain_text("first: It is paused.")
    in_state(page, "first", "paused")
    expect(page.locator(".attention")).to_contain_text("is paused and holds 3 GiB", timeout=SOON)
    shot(page, "guide-4-paused", whole=False)
    page.locator(".toast").get_by_role("button", name="Undo").click()
    in_state(page, "first", "running")

    row(page, "first").get_by_role("button", name="Kill").click()
    page.get_by_label("Reason").fill("making room")
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    in_state(page, "first", "killed")
    in_state(page, "second", "running")
    expect(page.locator("#no-queue")).to_be_visible()
    shot(page, "guide-5-resumed", whole=False)


def test_the_server_goes_away_and_comes_back_and_no_program_ends(page: Page, appliance: Appliance) -> None:
    appliance.launch(WORKLOAD, "--hold", "600", "--check", "1MiB", name="steady", gpu_memory="2GiB")
    overview(page)
    in_state(page, "steady", "running")
    appliance.crash()
    expect(page.locator("#banner-lost")).to_contain_text("Connection lost. The data below is", timeout=SOON)
    expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
    row(page, "steady").get_by_role("button", name="Pause").click()
    expect(page.locator(".toast.bad")).to_contain_text("Check the result before")
    page.locator(".toast.bad [data-close]").click()
    appliance.start()
    expect(page.locator("#banner-lost")).to_be_hidden(timeout=SOON)
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    in_state(page, "steady", "running")
    row(page, "steady").get_by_role("button", name="Pause").click()
    in_state(page, "steady", "paused")
