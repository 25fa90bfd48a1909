"""The overview of a large lab in a real Chromium: until it is there, searched, grouped, chosen; its RAM; one change."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import Page, sync_playwright

from benchmarks.scale.lab import Lab, memory_of, name_of
from benchmarks.scale.writes import Schedulers
from benchmarks.web.dashboard_latency import FLAGS
from scheduler.engines.process import tree

if TYPE_CHECKING:
    from tests.support.site import Site

SEEN = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
LIVE = """async () => {
    const overview = document.querySelector('script[src*="overview"]').src;
    window.live = (await import(overview.replace("pages/overview", "parts/live"))).live;
}"""
# What a message of everything that changes within a second costs: applied, and drawn.
CHANGED = """async () => {
    const times = [];
    for (let round = 0; round < 5; round += 1) {
        for (const container of Object.values(live.state.containers))
            for (const claim of Object.values(container.gpus)) claim.used = Math.random() * claim.quota;
        const begun = performance.now();
        live.dispatchEvent(new CustomEvent("change", { detail: { whole: false, changes: {} } }));
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        times.push(performance.now() - begun);
    }
    return times.sort((a, b) => a - b)[2];
}"""


def renderers() -> list[int]:
    """The processes of our browser's pages."""
    family = [each.pid for each in tree.descendants(os.getpid())]
    return [pid for pid in family if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def took(page: Page, do: Any) -> float:
    """Milliseconds until what this does is seen."""
    begun = time.perf_counter()
    do()
    page.evaluate(SEEN)
    return 1e3 * (time.perf_counter() - begun)


def measure(lab: Lab, them: Schedulers, site: Site, shots: Path | None = None) -> None:
    from tests.support.site import person

    cookie: Any = site.cookie(person("admin", "admin"))
    them.live(lab.size.nodes // 30, 60)
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = browser.new_context(viewport={"width": 1440, "height": 900}, base_url=site.url)
        context.set_default_timeout(60_000)
        context.add_cookies([cookie])
        page = context.new_page()
        sizes: list[int] = []
        page.on("websocket", lambda socket: socket.on("framereceived", lambda text: sizes.append(len(text))))
        page.goto("/login/")

        def load() -> None:
            page.goto("/")
            page.locator("#node-list li").first.wait_for()

        print("\nthe overview in Chromium:")
        print(
            f"  {'until it is there':28}{took(page, load):8.0f} ms, of which the first message {sizes[0] / 1e6:.2f} MB"
        )
        page.evaluate(LIVE)
        search, group = page.get_by_label("Search nodes"), page.get_by_label("Group by")
        name = name_of(lab.size.nodes // 2)
        print(f"  {'searched for one node':28}{took(page, lambda: search.fill(name)):8.0f} ms")
        assert page.locator("#node-list li").count() == 1
        print(f"  {'the search taken away':28}{took(page, lambda: search.fill('')):8.0f} ms")
        print(f"  {'grouped by rack':28}{took(page, lambda: group.select_option('rack')):8.0f} ms")
        page.evaluate("() => document.getElementById('node-group').value = ''")
        chosen = page.locator("#node-list button").first
        print(f"  {'a node chosen':28}{took(page, chosen.click):8.0f} ms")
        chosen.click()
        print(f"  {'everything changed, drawn':28}{page.evaluate(CHANGED):8.0f} ms")
        print(f"  {'elements on the page':28}{page.locator('*').count():8}")
        session = context.new_cdp_session(page)
        session.send("Performance.enable")
        metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        before, begun = metrics, time.monotonic()
        time.sleep(10)
        metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        busy = (metrics["TaskDuration"] - before["TaskDuration"]) / (time.monotonic() - begun)
        print(f"  {'the heap of its scripts':28}{metrics['JSHeapUsedSize'] / 1e6:8.0f} MB")
        print(f"  {'its process':28}{max(map(memory_of, renderers())) / 1e6:8.0f} MB")
        print(f"  {'busy while a tenth changes':28}{100 * busy:8.0f} % of a core")
        if shots:
            for theme in ("light", "dark"):
                for width in (1440, 400):
                    page.emulate_media(color_scheme=theme)
                    page.set_viewport_size({"width": width, "height": 1400})
                    page.evaluate(SEEN)
                    page.screenshot(path=shots / f"overview-{lab.size.nodes}-{width}-{theme}.png")
        browser.close()
    them.result()
