"""What a person waits for: a launch, the lists by REST, and the page, of the tree in which this is run.

    python -m benchmarks.web.answers [ROUNDS]
    cd another/tree && python PATH/TO/benchmarks/web/answers.py [ROUNDS]       (as `python -m benchmarks.before` does)

The quick start (process engine, simulated card) with 20 living containers. Shown are medians over the rounds. It uses
what releases of this appliance have had for long, so that an older one can be asked as well.
"""

import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx

sys.path.insert(0, str(Path.cwd()))

from tests.support.appliance import Appliance

LIVING = 20
PACE = 0.03  # seconds between two questions: nobody's budget is passed
A_WHILE = ["sleep", "0.2"]


def median(ask: Callable[[], httpx.Response], rounds: int, pace: float = PACE) -> float:
    """Milliseconds."""
    took = []
    for _ in range(rounds):
        time.sleep(pace)
        began = time.perf_counter()
        ask().raise_for_status()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


def signed_in(url: str, password: str) -> httpx.Client:
    client = httpx.Client(base_url=url, follow_redirects=True)
    form = client.get("/login/").text
    (token,) = set(re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', form))
    body = {"username": "admin", "password": password, "csrfmiddlewaretoken": token}
    client.post("/login/", data=body, headers={"Referer": f"{url}/login/"}).raise_for_status()
    return client


def main(rounds: int = 100) -> None:
    with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
        appliance = Appliance(Path(folder) / "var", gpus="sim:1x64GiB")
        for number in range(LIVING):
            appliance.launch("sleep", "3600", name=f"lives-{number}", gpu_memory="64MiB")
        headers = {"Authorization": f"Token {appliance.token}"}
        browser = signed_in(appliance.url, appliance.token)
        with closing(browser), httpx.Client(base_url=f"{appliance.url}/api/v1", headers=headers) as rest:
            launch = {"image": "local", "command": A_WHILE, "gpu_memory": "64MiB", "remove_when_done": True}
            for name, ask, times, pace in (
                ("a launch", lambda: rest.post("/containers/", json=launch), rounds // 2, 0.3),
                ("containers/", lambda: rest.get("/containers/"), rounds, PACE),
                ("queue/", lambda: rest.get("/queue/"), rounds, PACE),
                ("gpus/", lambda: rest.get("/gpus/"), rounds, PACE),
                ("the page", lambda: browser.get("/"), rounds, PACE),
            ):
                print(f"{name:12} {median(ask, times, pace):7.2f} ms", flush=True)
        appliance.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
