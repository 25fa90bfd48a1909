"""How soon a page is there: bytes of a first load, first paint, and a day of 200 containers in the replay.

A whole appliance with a database of its own that also holds 200 live containers and their last day: a sample a second
for the last hour, rolled up by the appliance's own code, and a sample a minute before that. Real headless Chromium,
with an empty cache for each first load.

    python -m benchmarks.web.dashboard_load [--runs 5] [--containers 200]
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from benchmarks.web.dashboard_latency import FLAGS, empty, fill, sign_in
from tests.support import wire
from tests.support.appliance import ROOT, Appliance

# 23 hours by the minute, then an hour by the second, of which the roll-up makes minutes.
DAY = """
from datetime import timedelta
from django.db import connection
from django.utils import timezone
from web.history.rollup import roll_up
from web.models import UsageSample
now = timezone.now().replace(second=0, microsecond=0)
with connection.cursor() as cursor:
    for span, start, count in ((60, now - timedelta(days=1), 23 * 60), (1, now - timedelta(hours=1), 3600)):
        cursor.execute('''
            WITH RECURSIVE step(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM step WHERE n + 1 < %s)
            INSERT INTO web_usagesample (at, span, gpu_id, container_id, used, peak, granted, utilisation, suspended)
            SELECT strftime('%%Y-%%m-%%d %%H:%%M:%%S', %s, '+' || (n * %s) || ' seconds'), %s, claim.gpu_id,
                   claim.container_id, claim.used * (60 + (n + claim.id) %% 40) / 100, claim.used, claim.granted, 50, 0
            FROM step, web_claim AS claim''', [count, f"{start:%Y-%m-%d %H:%M:%S}", span, span])
print("samples:", UsageSample.objects.count(), "minutes rolled up:", roll_up(timezone.now()))
"""


def a_day(home: Path) -> None:
    command = [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c", DAY]
    subprocess.run(command, check=True, env={**os.environ, "GPUSHARE_HOME": str(home)})


def first_load(browser: Browser, url: str, session: str) -> tuple[Counter[str], float]:
    """Bytes over the wire by kind, and milliseconds to the first paint. Nothing is cached."""
    with wire.counted(url) as line, browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = wire.fresh(context, line, {"name": "sessionid", "value": session})
        kinds = wire.load(page, line)
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        return kinds, float(paint)


def replay(browser: Browser, url: str, session: str) -> float:
    """Seconds from asking for the page to the day drawn."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        context.add_cookies([{"name": "sessionid", "value": session, "url": url}])
        page = context.new_page()
        page.goto(f"{url}/login/")  # the browser's own start is not what is measured
        began = time.perf_counter()
        page.goto(f"{url}/history/")
        page.locator("#replay[data-ready]").wait_for()
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--containers", type=int, default=200)
    given = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "var"
        appliance = Appliance(home, gpus="sim:1x80GiB")
        stack.callback(appliance.close)
        fill(home, given.containers)
        stack.callback(empty, home)
        a_day(home)
        session = sign_in(appliance)
        playwright = stack.enter_context(sync_playwright())
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        stack.callback(browser.close)
        sizes, paints = zip(*(first_load(browser, appliance.url, session) for _ in range(given.runs)), strict=True)
        opens = [replay(browser, appliance.url, session) for _ in range(given.runs)]
    paint, opened = statistics.median(paints) / 1000, statistics.median(opens)
    print(f"{given.containers} containers, {given.runs} runs each, load {os.getloadavg()[0]:.1f}:")
    most = max(sizes, key=Counter.total)
    kinds = ", ".join(f"{kind} {size / 1000:.1f}" for kind, size in most.most_common())
    print(
        f"first load: {most.total() / 1000:.0f} kB over the wire ({kinds}); first paint: median {paint * 1000:.0f} ms"
    )
    print(f"a day's replay opens in: median {opened:.2f} s, worst {max(opens):.2f} s")
    return 0 if most.total() <= 250_000 and paint < 1.0 and opened < 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
