"""What ten usual things take in clicks and seconds: a whole appliance, 70 containers of 8 people, 30 of them waiting.

A real scheduler, two simulated cards of 8 GiB, real processes that hold and wait for memory, and headless Chromium.
Each task begins on the overview (tests/browser/tasks.py) and is done by a script that knows where everything is. It is
measured from the first press to the answer on the screen: loading of pages, commands to the scheduler and back, and
the typing of names, a key after the other. The time to read, to think and to move a mouse is not in it.

    python -m benchmarks.web.ten_tasks [--runs 3]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from benchmarks.web.dashboard_latency import FLAGS
from tests.browser.tasks import TASKS, Named, Opens
from tests.support.appliance import ROOT, WORKLOAD, Appliance, until
from tests.support.chromium import CHROMIUM
from tests.support.constants import with_constants

PASSWORD = "a long enough password"
# Who, with how many that hold and how many that wait; greta's first three are paused and hold the most.
PEOPLE = (
    ("greta", 9, 0), ("ann", 5, 6), ("bob", 6, 4), ("chen", 4, 5), ("dora", 5, 4), ("emil", 4, 4), ("farid", 4, 4),
    ("hanna", 3, 3),
)  # fmt: skip
ACCOUNTS = """
from django.contrib.auth.models import Group, User
from web.models import Preset
for name, role in {accounts}:
    User.objects.create_user(name, password="{password}").groups.add(Group.objects.get_or_create(name=role)[0])
User.objects.get(username="admin").groups.add(Group.objects.get_or_create(name="launches-for-others")[0])
spec = {{"image": "local", "command": ["sleep", "3600"], "gpu_memory": "64MiB"}}
Preset.objects.update_or_create(name="JupyterLab", defaults={{"spec": spec}})
"""


def fill(appliance: Appliance) -> Named:
    accounts = [(name, "user") for name, *_ in PEOPLE] + [("boss", "admin")]
    command = [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c"]
    words = ACCOUNTS.format(accounts=accounts, password=PASSWORD)
    subprocess.run([*command, words], check=True, env={**os.environ, "GPUSHARE_HOME": str(appliance.home)})

    def launch(name: str, owner: str, card: int, held: int, quota: int) -> str:
        hold = [WORKLOAD, "--bytes", f"{held}MiB", "--check", "1MiB", "--hold", "3600"]
        asked = {"image": "local", "name": name, "owner": owner, "command": hold, "gpu_memory": f"{quota}MiB"}
        return str(appliance.api("POST", "containers/", asked | {"gpus": [cards[card]]})["id"])

    cards = [gpu["uuid"] for gpu in sorted(appliance.api("GET", "gpus/")["results"], key=lambda gpu: gpu["index"])]
    paused = [launch(f"greta-train-{number + 1}", "greta", number % 2, 1000, 1100) for number in range(3)]
    number = 0
    for name, holding, _ in PEOPLE:
        for each in range(3 if name == "greta" else 0, holding):
            launch(f"{name}-train-{each + 1}", name, number % 2, 170, 270)
            number += 1
    for name, _, waiting in PEOPLE:
        for each in range(waiting):
            launch(f"{name}-sweep-{each + 1}", name, number % 2, 3000, 3100)
            number += 1
    for held in paused:
        appliance.api("POST", f"containers/{held}/pause/", {})
    failing = [sys.executable, "-c", "raise MemoryError('CUDA out of memory')"]
    asked = {"image": "local", "name": "ann-finetune", "owner": "ann", "command": failing, "gpu_memory": "64MiB"}
    appliance.api("POST", "containers/", asked)
    count = sum(sum(numbers) for _, *numbers in PEOPLE)
    until(lambda: sum(1 for each in appliance.containers() if each["state"] in ("suspended", "created")) >= 25)
    print(f"{count} containers:", {s: sum(e["state"] == s for e in appliance.containers())
                                   for s in ("running", "suspended", "paused", "created")})  # fmt: skip
    node = appliance.api("GET", "nodes/")["results"][0]["name"]
    return Named("hanna", "hanna-sweep-3", "greta", 3, "ann-finetune", "CUDA out of memory", "bob", 10, node, 1)


def opener(browser: Browser, appliance: Appliance, began: list[float]) -> Opens:
    """Signs in, opens the overview, and notes when that is there."""

    def opens(name: str) -> Page:
        context = browser.new_context(
            viewport={"width": 1440, "height": 900}, base_url=appliance.url, reduced_motion="reduce"
        )
        context.grant_permissions(["clipboard-write"])
        page = context.new_page()
        page.goto("/")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        page.locator("#attention li li").first.wait_for()
        began.append(time.perf_counter())
        return page

    return opens


def measured(task: Callable[[Opens, Named], int], opens: Opens, named: Named, began: list[float]) -> tuple[int, float]:
    clicks = task(opens, named)
    return clicks, time.perf_counter() - began.pop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of those tasks that change nothing; others run once")
    given = parser.parse_args()
    expect.set_options(timeout=60_000)
    again = {"why_do_i_wait", "last_month_as_csv", "what_broke_last_night", "was_this_week_fair"}
    within = True
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "var"
        waits = {"web.services.attention.containers.LONG_SECONDS": 5}
        appliance = Appliance(home, gpus="sim:2x8GiB", GPUSHARE_POLICY="fair", **with_constants(waits))
        stack.callback(appliance.close)
        stack.callback(appliance.end_all)
        named = fill(appliance)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        stack.callback(browser.close)
        began: list[float] = []
        opens = opener(browser, appliance, began)
        # Stopping and freeing last: they change what others find.
        for task in sorted(TASKS, key=lambda task: task.__name__.startswith(("free", "stop"))):
            count = given.runs if task.__name__ in again else 1
            try:
                runs = [measured(task, opens, named, began) for _ in range(count)]
            except (AssertionError, Error) as failed:
                print(f"{task.__name__.replace('_', ' '):34} not done: {str(failed)[:300]}")
                began.clear()
                within = False
                continue
            clicks, seconds = runs[0][0], statistics.median(each for _, each in runs)
            within &= clicks <= TASKS[task]
            print(f"{task.__name__.replace('_', ' '):34} {clicks} of at most {TASKS[task]} clicks, {seconds:5.1f} s")
        print(f"load {os.getloadavg()[0]:.1f}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
