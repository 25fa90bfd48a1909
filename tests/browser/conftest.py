"""A real server in a process of its own, a real database, a real Chromium.

Sync Playwright keeps an event loop running in this thread, so Chromium lives no longer than one test module: async
tests elsewhere in the same run would find that loop otherwise.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, WebSocket, expect, sync_playwright

from tests.support.appliance import ROOT
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.constants import with_constants
from tests.support.eventually import PATIENCE
from tests.support.site import Site, person, running_site

expect.set_options(timeout=1000 * PATIENCE)  # milliseconds
# A server that waits for the outcome of a command however busy the machine is: each has to be answered.
PATIENT = with_constants({"web.services.issuing.ANSWER_WITHIN": PATIENCE})
# Two frames, and the transitions that a change of theme began: half-way between two themes nothing has contrast.
SETTLED = """async () => {
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  const ends = document.getAnimations().filter(one => one.effect.getComputedTiming().endTime < Infinity);
  await Promise.allSettled(ends.map(one => one.finished));
}"""
SIZES: dict[str, Any] = {"wide": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site"), django_db_blocker, **PATIENT) as site:
        yield site


@pytest.fixture
def site(_server: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The running server with an empty database, which is also this test's own."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright's loop is not ours, and nobody awaits meanwhile
    log = _server.home / "server.log"
    said = log.stat().st_size
    with _server.database():
        yield _server
    print(log.read_bytes()[said:].decode(errors="replace"))  # shown if the test fails


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("no chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


# Good news leaves after some seconds, and a busy machine may need longer until a test presses its "Undo".
STAYS = re.search(r"^const STAYS = (\d+);$", (ROOT / "static/gpushare/parts/actions.js").read_text(), re.MULTILINE)
assert STAYS is not None
OF_THAT_LENGTH = [path for path in (ROOT / "static/gpushare").rglob("*.js") if STAYS[1] in path.read_text()]
assert len(OF_THAT_LENGTH) == 1, "another timer of the same length would be held up too"
GOOD_NEWS_STAYS = f"""{{
  const later = window.setTimeout;
  window.setTimeout = (act, wait, ...rest) => later(act, wait === {STAYS[1]} ? 2 ** 30 : wait, ...rest);
}}"""


def _print_traffic(page: Page) -> None:
    """Prints what goes on between the page and the server: shown if the test fails."""
    began = time.monotonic()

    def tell(*words: object) -> None:
        print(f"{time.monotonic() - began:.3f}", *words)

    def socket(opened: WebSocket) -> None:
        tell("socket", opened.url)
        opened.on("framereceived", lambda frame: tell("received", opened.url, str(frame)[:60]))
        opened.on("socketerror", lambda error: tell("failed", opened.url, error))
        opened.on("close", lambda _: tell("closed", opened.url))

    page.on("request", lambda asked: tell("asked", asked.url))
    page.on("requestfinished", lambda asked: tell("answered", asked.url))
    page.on("requestfailed", lambda asked: tell("failed", asked.url, asked.failure))
    page.on("console", lambda said: tell(said.type, said.text, said.location) if said.type == "error" else None)
    page.on("websocket", socket)


@pytest.fixture
def open_as(site: Site, chromium: Browser) -> Iterator[Callable[..., Page]]:
    """open_as("admin", path, size="wide", theme="light") → a page of that person. Errors on the page fail the test."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_page(name: str, path: str = "/", size: str = "wide", theme: Any = "light", role: str = "") -> Page:
        context = chromium.new_context(
            viewport=SIZES[size], color_scheme=theme, base_url=site.url, reduced_motion="reduce"
        )
        context.set_default_timeout(1000 * PATIENCE)
        context.add_init_script(GOOD_NEWS_STAYS)
        contexts.append(context)
        if name:
            context.add_cookies([site.cookie(person(name, role or name))])  # type: ignore[list-item]
        page = context.new_page()
        _print_traffic(page)
        page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
        page.on(
            "console",
            lambda said: errors.append(f"{said.text} {said.location}") if "Content Security" in said.text else None,
        )
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def shot(tmp_path: Path) -> Callable[..., Path]:
    """shot(page, "overview"): a screenshot in GPUSHARE_SCREENSHOTS if that is set; the page stands still afterwards.

    `judged`: the test itself looks at the picture, so it is taken anyway, else into the test's own folder.
    """
    wanted = os.environ.get("GPUSHARE_SCREENSHOTS")
    folder = Path(wanted or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def take(page: Page, name: str, whole: bool = True, judged: bool = False) -> Path:
        path = folder / f"{name}.png"
        page.evaluate(SETTLED)
        if wanted or judged:
            page.screenshot(path=path, full_page=whole)
        return path

    return take
