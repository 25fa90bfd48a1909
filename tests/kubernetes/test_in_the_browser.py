"""A pod's life in the dashboard, from its claim to its end: a real scheduler, container, web server and browser."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from playwright.async_api import Page, async_playwright, expect

from tests.kubernetes.cluster.rules import JSON
from tests.kubernetes.conftest import Lab
from tests.kubernetes.test_containers import IMAGE, Pod, docker_api, engine
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.dockerd import Dockerd
from tests.support.host import query
from tests.support.site import running_site
from web.models import Container

__all__ = ["docker_api", "engine"]
pytestmark = [pytest.mark.docker, pytest.mark.browser, pytest.mark.timeout(180)]
SOON = 30_000  # milliseconds


@pytest.fixture
async def page(lab: Lab, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> AsyncIterator[Page]:
    """Ada's, of a web server with the lab's database."""
    if not CHROMIUM:
        pytest.skip("no chromium on PATH")
    expect.set_options(timeout=SOON)
    database = {"DATABASE_URL": f"sqlite:///{connection.settings_dict['NAME']}", "GPUSHARE_HOME": str(lab.home)}
    web = running_site(tmp_path_factory.mktemp("web"), django_db_blocker, **database)
    with ExitStack() as stack:
        site = await asyncio.to_thread(stack.enter_context, web)
        ada = await query(User.objects.get, username="ada")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            context = await browser.new_context(
                viewport={"width": 1440, "height": 900}, base_url=site.url, reduced_motion="reduce"
            )
            context.set_default_timeout(SOON)
            await context.add_cookies([await query(site.cookie, ada)])
            page = await context.new_page()
            yield page
            await browser.close()
        await asyncio.to_thread(stack.close)


async def shot(page: Page, name: str) -> None:
    """Only where somebody wants to look at them."""
    if folder := os.environ.get("GPUSHARE_SCREENSHOTS"):
        await page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


async def test_a_pods_life_from_its_claim_to_its_end(lab: Lab, engine: Dockerd, page: Page) -> None:
    await lab.published()
    await page.goto("/")
    await expect(page.locator("#connection")).to_have_attribute("data-state", "live")

    claim = await lab.allocator.claim("2Gi", name="train-gpu-x7k2p")
    made = await lab.pods.make("train", {"main": claim}, account="trainer", images={"main": IMAGE}, generated=True)
    (told,) = await lab.pods.start(made)
    row = page.locator("tr[data-id]", has=page.get_by_role("link", name="train", exact=True))
    await expect(row).to_have_attribute("data-state", "running")
    await expect(row).to_contain_text("2 GiB")
    program = await Pod(engine, lab.cdi, "train", told["gpu0"], "workload", "--bytes", "1GiB", "--hold", "600").start()

    await row.get_by_role("link", name="train", exact=True).click()
    await expect(page.locator("#pods")).to_have_text("Namespace team-a · pod train (main), service account trainer")
    await expect(page.locator("#outputs")).to_contain_text("kubectl logs -n team-a train -c main")
    await expect(page.locator('[data-field="used"]')).to_contain_text("1.06 GiB")
    await shot(page, "pod-runs")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.locator('[data-field="state"]')).to_have_text("Paused")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.locator('[data-field="state"]')).to_have_text("Running")

    async def stop(pod: JSON) -> None:
        await program.kill()

    lab.pods.stop = stop
    await page.get_by_role("button", name="Kill").click()
    await page.locator("dialog[open]").get_by_role("button", name="Kill").click()
    await expect(page.locator('[data-field="state"]')).to_have_text("Killed")
    await expect(page.locator('[data-field="ended"]')).to_contain_text("exit code 137")
    await shot(page, "pod-ended")
    await page.goto("/reports/?group_by=namespace")
    await expect(page.locator("table.report tbody tr").first).to_contain_text("team-a")
    await lab.nothing_is_held()
    assert (await query(Container.objects.get)).state == "killed"
