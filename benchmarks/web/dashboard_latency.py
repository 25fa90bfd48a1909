"""From a change in the scheduler to the pixels: 200 containers on screen, 30 of them waiting, 50 browsers watching.

A whole appliance (real scheduler, two real processes, a simulated card) whose database also holds containers up to
200, of which a fifth change each second, as samples make them. One of the 50 watchers is Chromium with the real page;
49 are WebSocket clients that read everything, since 50 Chromiums measure the machine and not the dashboard. A real
container is paused and resumed again and again; from the time that the scheduler stamped on the change to the frame
after the row has changed on the page is what is shown, and where on the way the time goes: until the write is committed
(its hint is heard), until the feed has read and published it, until the page and a plain client have it, until the row
has changed, until the frame after; and the processor time of it all. The same of a program that takes and frees memory
inside its lease, which sends no message, from its own clock. Then nothing changes, and the page's own CPU is shown.

    python -m benchmarks.web.dashboard_latency [--changes 60] [--watchers 49] [--containers 200] [--waiters 30]
"""

import argparse
import asyncio
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import httpx
from playwright.sync_api import Page, sync_playwright
from websockets.asyncio.client import connect

from appliance.datagrams import Datagrams
from tests.support.appliance import ROOT, Appliance, until
from tests.support.constants import with_constants

GIB = 2**30
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
# Notes when a message that tells of another state of this container has come, before the page hears of it.
HEAR = """
window.heard = [];
window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", ({ data }) => {
      const at = Date.now() / 1000;
      if (window.measured && data.includes(`"${window.measured}": {"state": `)) window.heard.push(at);
    });
  }
};
"""
WATCH = """id => {
  window.seen = [];
  window.measured = id;
  const row = () => document.querySelector(`tr[data-id="${id}"]`);
  let state = row().dataset.state;
  new MutationObserver(() => {
    const now = row()?.dataset.state;
    if (!now || now === state) return;
    state = now;
    const changed = Date.now() / 1000;
    requestAnimationFrame(() => setTimeout(() => window.seen.push([changed, Date.now() / 1000]))); // after that frame
  }).observe(document.getElementById("rows"), { subtree: true, childList: true, attributes: true });
}"""

# Takes and frees what fits in its lease, and says when it has.
BREATHE = """
import ctypes, time
cuda, context, address, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
cuda.cuInit(0)
cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
while True:
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8 << 20))
    print(time.time(), flush=True)
    time.sleep(1.37)
    cuda.cuMemFree_v2(ctypes.c_uint64(address.value))
    print(time.time(), flush=True)
    time.sleep(1.37)
"""
WATCH_FIGURES = """id => {
  window.figures = [];
  const row = () => document.querySelector(`tr[data-id="${id}"] [data-field="figures"]`);
  let text = row().textContent;
  new MutationObserver(() => {
    const now = row()?.textContent;
    if (!now || now === text) return;
    text = now;
    requestAnimationFrame(() => setTimeout(() => window.figures.push(Date.now() / 1000)));
  }).observe(document.getElementById("rows"), { subtree: true, childList: true, characterData: true });
}"""


FILL = """
from datetime import timedelta
from django.contrib.auth.models import User
from django.utils import timezone
from web.models import Claim, Container, Gpu
owner, gpu, now, part = User.objects.first(), Gpu.objects.first(), timezone.now(), {part}
since = now - timedelta(minutes=10)
made = [Container(name=f"filler-{{n}}", owner=owner, image="local", gpu_memory=part, colour=n % 10, started_at=since)
        for n in range({count})]
for place, waiter in enumerate(made[: {waiters}], 1):
    waiter.suspended_since, waiter.queue_position = since, place
    waiter.queue_reason = "Needs 1 GiB; 717 MiB is free. Next when filler-99 ends."
Container.objects.bulk_create(made)
Claim.objects.bulk_create(Claim(container=c, gpu=gpu, quota=part, granted=held, used=held, peak=held,
                                waiting=0 if held else part)
                          for c in made for held in [0 if c.suspended_since else part // 4])
"""


def fill(home: Path, count: int, waiters: int = 0) -> None:
    """Rows of containers that the scheduler does not know, and so leaves alone. Some of them have waited for long."""
    words = FILL.format(count=count, waiters=waiters, part=GIB)
    command = [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c", words]
    subprocess.run(command, check=True, env={**os.environ, "GPUSHARE_HOME": str(home)})


def empty(home: Path) -> None:
    with sqlite3.connect(home / "database/gpushare.sqlite3", timeout=20) as db:
        fillers = "(SELECT id FROM web_container WHERE name LIKE 'filler-%')"
        db.execute(f"DELETE FROM web_usagesample WHERE container_id IN {fillers}")
        db.execute(f"DELETE FROM web_claim WHERE container_id IN {fillers}")
        db.execute("DELETE FROM web_container WHERE name LIKE 'filler-%'")


def stir(database: Path, stop: threading.Event) -> None:
    """A fifth of the containers hold something else each second."""
    with sqlite3.connect(database, timeout=20, isolation_level=None) as db:
        turn = 0
        while not stop.wait(1.0):
            turn += 1
            db.execute(
                "UPDATE web_claim SET used = granted - (? << 20) WHERE id % 5 = ? AND quota = ? AND granted > 0",
                (turn, turn % 5, GIB),
            )


class Heard:
    """What somebody beside the page hears of a container, in seconds since the epoch: hints (something was committed),
    and of each change of its state when it was published and when a plain client had it."""

    def __init__(self, container: str) -> None:
        self._container = container
        self.hints: list[float] = []
        self.changes: list[tuple[float, float]] = []

    def listen(self, text: str) -> None:
        at, message = time.time(), json.loads(text)
        if message["type"] == "delta" and "state" in message["data"].get("containers", {}).get(self._container, {}):
            self.changes.append((message["now"], at))

    async def hear_hints(self, home: Path) -> None:
        layer = Datagrams(home / "hints")
        channel = await layer.new_channel()
        await layer.group_add("live", channel)
        while True:
            await layer.receive(channel)
            self.hints.append(time.time())


async def watch(appliance: Appliance, cookie: str, count: int, heard: Heard, stop: threading.Event) -> None:
    async def one(first: bool) -> None:
        address = appliance.url.replace("http", "ws") + "/ws/dashboard/"
        async with connect(address, additional_headers={"Cookie": cookie}, origin=appliance.url, max_size=None) as line:  # type: ignore[arg-type]
            while not stop.is_set():
                text = await asyncio.wait_for(line.recv(), 10)
                if first:
                    heard.listen(str(text))

    hints = asyncio.create_task(heard.hear_hints(appliance.home))
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number == 0))
    hints.cancel()


def sign_in(appliance: Appliance) -> str:
    with httpx.Client(base_url=appliance.url, timeout=60) as client:
        client.get("/login/")
        form = {"username": "admin", "password": appliance.token, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
        client.post("/login/", data=form, headers={"Referer": f"{appliance.url}/login/"})
        return client.cookies["sessionid"]


def open_page(stack: ExitStack, appliance: Appliance, session: str) -> Page:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    playwright = stack.enter_context(sync_playwright())
    browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
    stack.callback(browser.close)
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_cookies([{"name": "sessionid", "value": session, "url": appliance.url}])
    page = context.new_page()
    page.add_init_script(HEAR)
    page.goto(f"{appliance.url}/?sort=age")  # what is measured was launched last, and holds the least
    page.locator('#connection[data-state="live"]').wait_for()
    return page


class Change(NamedTuple):
    """When one change was where, in seconds since the epoch; in the order of its way."""

    decided: float
    committed: float
    published: float
    in_the_page: float
    in_its_rows: float
    on_screen: float
    in_a_plain_client: float


def changes(appliance: Appliance, page: Page, container: str, count: int, heard: Heard) -> list[Change]:
    page.evaluate(WATCH, container)
    stamps = []
    for number in range(count):
        action = "resume" if number % 2 else "pause"
        appliance.api("POST", f"containers/{container}/{action}/", {})
        page.wait_for_function("count => window.seen.length >= count", arg=number + 1, timeout=60_000)
        command = appliance.api("GET", "commands/?page_size=1")["results"][0]
        stamps.append(datetime.fromisoformat(command["done_at"]).timestamp())
    until(lambda: len(heard.changes) >= count)
    in_page, in_rows = page.evaluate("window.heard"), page.evaluate("window.seen")
    committed = [min(hint for hint in heard.hints if hint >= stamp) for stamp in stamps]
    return [
        Change(stamp, hint, published, came, drawn, shown, client)
        for stamp, hint, (published, client), came, (drawn, shown) in zip(
            stamps, committed, heard.changes, in_page, in_rows, strict=True
        )
    ]


def report(name: str, seconds: Sequence[float]) -> float:
    """Prints median and p95; the latter, in seconds."""
    ordered = sorted(seconds)
    p95 = ordered[int(0.95 * len(ordered))]
    print(f"{name:44} median {statistics.median(ordered) * 1000:4.0f} ms, p95 {p95 * 1000:4.0f} ms")
    return p95


def tell_stages(found: Sequence[Change]) -> None:
    stages = Change._fields[:-1]
    for before, after in pairwise(stages):
        words = f"  {before} → {after}".replace("_", " ")
        report(words, [getattr(each, after) - getattr(each, before) for each in found])
    report("  (published → in a plain client)", [each.in_a_plain_client - each.published for each in found])


def spent(appliance: Appliance, page: Page) -> dict[str, float]:
    """Seconds of processor so far: of the scheduler and the web process with all threads, of the page's process."""
    own = {
        name: sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
        for name, pid in appliance.parts().items()
    }
    browser = page.context.browser
    assert browser is not None
    found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return own | {"browser": max(each["cpuTime"] for each in found if each["type"] == "renderer")}


def uses(appliance: Appliance, page: Page, container: str, count: int) -> list[float]:
    """Seconds from a change of use inside a lease to the frame after, for each of so many."""
    log = appliance.home / "logs" / f"{container}.log"
    page.evaluate(WATCH_FIGURES, container)
    begun = time.time()
    page.wait_for_function("count => window.figures.length >= count", arg=count + 1, timeout=1000 * (20 + 3 * count))
    uses_at = [float(line) for line in log.read_text().split() if float(line) > begun]
    seen = page.evaluate("window.figures")
    return [min(at for at in seen if at > before) - before for before in uses_at[:count]]


def idle_cpu(page: Page, seconds: float = 10.0) -> float:
    """The page's main thread, as a part of one core, while nothing changes."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU, not what other work took from it

    def busy() -> float:
        metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        return float(metrics["TaskDuration"])

    before = busy()
    page.wait_for_timeout(seconds * 1000)
    return (busy() - before) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=60)
    parser.add_argument("--watchers", type=int, default=49)
    parser.add_argument("--containers", type=int, default=200)
    parser.add_argument("--waiters", type=int, default=30)
    given = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "var"
        appliance = Appliance(home, gpus="sim:1x80GiB", **with_constants({"web.live.consumer._open.each": 64}))
        stack.callback(appliance.close)
        fill(home, given.containers - 2, given.waiters)
        stack.callback(empty, home)
        container = appliance.launch("sleep", "3600", name="measured")["id"]
        breathing = appliance.launch(sys.executable, "-c", BREATHE, name="breathing")["id"]
        session = sign_in(appliance)
        stop, calm, heard = threading.Event(), threading.Event(), Heard(container)
        cookie = f"sessionid={session}"
        watchers = threading.Thread(target=lambda: asyncio.run(watch(appliance, cookie, given.watchers, heard, stop)))
        stirring = threading.Thread(target=stir, args=(home / "database/gpushare.sqlite3", calm))
        watchers.start()
        stirring.start()
        stack.callback(watchers.join)
        stack.callback(calm.set)
        stack.callback(stop.set)  # before the join, also where something fails
        page = open_page(stack, appliance, session)
        time.sleep(2)
        before, began = spent(appliance, page), time.monotonic()
        took = changes(appliance, page, container, given.changes, heard)
        lasted, after = time.monotonic() - began, spent(appliance, page)
        used = uses(appliance, page, breathing, given.changes // 2)
        appliance.api("POST", f"containers/{breathing}/kill/", {})
        calm.set()
        stirring.join()
        time.sleep(3)
        cpu = idle_cpu(page)
        stop.set()
    print(f"{given.containers} containers, {given.waiters} of them waiting, {given.watchers} WebSocket clients and "
          f"1 Chromium, {len(took)} changes, load {os.getloadavg()[0]:.1f}:")  # fmt: skip
    p95 = report("change in the scheduler → pixels", [each.on_screen - each.decided for each in took])
    tell_stages(took)
    parts = ", ".join(f"{name} {1000 * (after[name] - before[name]) / len(took):.1f} ms" for name in after)
    print(f"  processor a change, with all else in its {1000 * lasted / len(took):.0f} ms: {parts}")
    used95 = report("use inside a lease → pixels", used)
    print(f"the page's own CPU while nothing changes: {cpu * 100:.1f} % of one core")
    return 0 if p95 <= 0.08 and used95 <= 0.3 and cpu <= 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
