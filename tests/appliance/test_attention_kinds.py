"""Kinds of what needs somebody, made true and untrue on a whole appliance, over PostgreSQL and a simulated card.

What rows alone decide is in tests/web/test_attention.py.

One appliance serves all of them; a test leaves it as it was. Its thresholds are low, its host's memory is what a file
says that lies over /proc/meminfo, and its home is a disk that a test can fill. What takes seconds to be noticed (a disk
is looked at every five, who does not stop is waited for ten) is made true together, looked at one by one, and mended
together. The last one starts the appliance on another card.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from websockets.asyncio.client import connect

from tests.support.appliance import ROOT, WORKLOAD, http, until
from tests.support.attended import MEMORY, Running
from tests.support.card import BUILD
from tests.support.constants import with_constants
from tests.support.disk import fill, small_disk
from tests.support.eventually import PATIENCE
from tests.support.postgres import BIN as POSTGRES
from tests.support.postgres import Postgres, running_postgres
from tests.support.swapped import HANGS, LOCK
from tests.support.tables import with_tables

pytestmark = [
    pytest.mark.production,
    pytest.mark.skipif(POSTGRES is None, reason="needs the distribution's PostgreSQL (see .ci/run)"),
]

ORDERS = """
import ctypes, sys
from pathlib import Path
import shim.sim
card = shim.sim.load_nvml(Path(sys.argv[1]))
for line in sys.stdin:
    name, *numbers = line.split()
    getattr(card, name)(*map(ctypes.c_uint64, map(int, numbers)))
    print(flush=True)
"""
SETTINGS = {
    "GPUSHARE_IDLE_MINUTES": "0.02",
    "GPUSHARE_GIVE_WAY": "off",
} | with_constants({
    "web.services.attention.containers.LONG_SECONDS": 1,
    "web.services.attention.cards.XID_SECONDS": 12,
})  # fmt: skip
WHOLE_DISK, FREE = "64m", 1 << 20


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres(like=with_tables()) as server:
        yield server


@pytest.fixture(scope="module")
def running(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("attention")
    (memory := folder / "meminfo").write_text(f"MemTotal: {MEMORY >> 10} kB\nMemAvailable: {MEMORY >> 10} kB\n")
    over = ("unshare", "--mount", "sh", "-c", f'mount --bind {memory} /proc/meminfo && exec "$@"', "sh")
    with small_disk(folder / "home", WHOLE_DISK) as home:
        environ = {**SETTINGS, "DATABASE_URL": postgres.url}
        appliance = Running(home, "sim:2x1GiB", within=over, **environ)
        appliance.postgres, appliance.memory = postgres, memory
        words = [sys.executable, "-c", ORDERS, str(BUILD)]
        orders = {**os.environ, "GPUSHARE_SIM": str(appliance.card), "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        with subprocess.Popen(words, env=orders, stdin=pipe, stdout=pipe, text=True) as appliance.orders:
            yield appliance
        appliance.close()


@pytest.fixture(autouse=True)
def nothing_lives(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "running" not in request.fixturenames:
        return
    appliance: Running = request.getfixturevalue("running")
    for container in appliance.containers():
        appliance.act(container, "kill")
    until(lambda: not appliance.containers())
    cards = partial(appliance.api, "GET", "gpus/")  # the next test may need them; of one that is gone nobody hears more
    until(lambda: not any(each["real"] for each in cards()["results"] if each["present"]))


def test_who_is_in_host_memory_and_waits_for_room(running: Running) -> None:
    away = running.holds("away")
    running.is_in(away, "running")
    until(lambda: running.named("away")["gpus"][0]["used"] > 500 << 20)
    running.act(away, "pause", free_memory=True)
    running.is_in(away, "swapped")
    assert not running.items("swapped_waiting")  # it waits for a person
    other = running.holds("other")
    until(lambda: running.named("other")["gpus"][0]["used"] > 500 << 20)
    running.act(away, "resume")
    item = running.raised("swapped_waiting", '"away" has')
    assert "in host memory" in item["message"]
    assert item["container"] == away["id"]
    running.act(other, "kill")
    running.is_in(away, "running")
    running.cleared("swapped_waiting")


def test_who_takes_memory_past_the_shim(running: Running) -> None:
    words = ["env", "-u", "LD_PRELOAD", WORKLOAD, "--bytes", "600MiB", "--hold", "600"]
    sly = running.launch(*words, name="sly", gpu_memory="100MiB")
    assert '"sly" holds 666 MiB beyond what was charged' in running.raised("unexplained", "666 MiB")["message"]
    assert running.raised("uncapped")["container"] == sly["id"]
    assert not running.items("foreign")  # it is a container's
    running.act(sly, "kill")
    running.cleared("unexplained")
    running.cleared("uncapped")


def test_memory_of_programs_that_are_no_containers(running: Running) -> None:
    words = [WORKLOAD, "--bytes", "600MiB", "--hold", "600"]
    environ = {**os.environ, "GPUSHARE_SIM": str(running.card), "LD_LIBRARY_PATH": str(BUILD / "sim")}
    program = subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL)
    try:
        item = running.raised("foreign", "666 MiB")
        assert re.search(rf"process {program.pid} of \w+ \(\S+workload …\), 666 MiB", item["message"])
        assert "666 MiB of GPU" in item["message"]
    finally:
        program.kill()
        program.wait()
    running.cleared("foreign")


def test_a_clock_that_is_not_the_databases(running: Running) -> None:
    def say(seconds: float) -> None:
        """As its scheduler would, which now and then says what is so."""
        with psycopg.connect(running.postgres.url, autocommit=True) as database:
            database.execute("UPDATE web_node SET skew = %s", [seconds])

    found = running.raised("clock_wrong", before_each_look=lambda: say(-7200))
    assert "is 7200 s behind the database's" in found["message"]
    say(0.2)
    running.cleared("clock_wrong")


@contextlib.contextmanager
def all_wrong(running: Running) -> Iterator[None]:
    """All of this at once, and mended at the end."""
    computes = "--check", "1MiB", "--compute", "600"
    both = [running.holds(name, *computes, size="64MiB") for name in ("one", "two")]
    for container in both:
        running.is_in(container, "running")
    running.order("sim_card_fault", LOCK, HANGS)
    running.order("sim_card_heat", 0, 55)
    running.order("sim_card_heat", 1, 50)  # warm, and below the limit
    running.order("sim_card_ecc", 0, 2)
    running.order("sim_card_xid", 1, 31)  # a program's page fault
    running.remember(free=1 << 30)
    fill(running.home, FREE)
    try:
        yield
    finally:
        (running.home / "filler").unlink()
        running.remember(free=8 << 30)
        for order in ("sim_card_heat", "sim_card_ecc"):  # it cools down; it was reset
            for gpu in (0, 1):
                running.order(order, gpu, 0)


def test_cards_disk_memory_and_log_that_go_wrong_at_once(running: Running) -> None:
    with all_wrong(running):
        see_critical_errors_of_a_card(running)
        see_a_card_that_is_hot(running)
        see_errors_of_a_cards_memory(running)
        see_a_disk_and_host_memory_that_are_nearly_full(running)
        see_an_audit_log_that_was_changed(running)
        see_who_cannot_be_stopped_for_others(running)
    for kind in ("nearly_full", "hot", "ecc", "xid"):  # the last one after its time
        running.cleared(kind)
    running.api("POST", f"gpus/{running.uuid(0)}/undrain/", {})
    running.cleared("drained")


def see_critical_errors_of_a_card(running: Running) -> None:
    # Such an item stands for a time; a busy machine may look later than that.
    item = running.raised("xid", before_each_look=lambda: running.order("sim_card_xid", 0, 79))
    assert item["message"].startswith("GPU 0 reported the critical error XID 79.")
    assert item["gpu"] == running.uuid(0)
    assert len(running.items("xid")) == 1
    assert "XID 79: the card has fallen off the bus." in running.raised("drained")["message"]


def see_a_card_that_is_hot(running: Running) -> None:
    item = running.raised("hot")
    assert item["message"].startswith("GPU 0 is at 85 °C; its limit is 85 °C.")
    assert item["since"]
    running.order("sim_card_heat", 0, 52)
    running.raised("hot", "at 82 °C")  # a little below its limit it stays, and does not come and go
    assert len(running.items("hot")) == 1


def see_errors_of_a_cards_memory(running: Running) -> None:
    assert running.raised("ecc")["message"].startswith("GPU 0 had 2 uncorrected memory errors")
    assert len(running.items("ecc")) == 1


def see_a_disk_and_host_memory_that_are_nearly_full(running: Running) -> None:
    disk = running.raised("nearly_full", "the disk of GPUSHARE_HOME")
    assert "the engine" in disk["message"]  # its folder is on the same disk
    assert disk["since"]
    assert "1 GiB of 16 GiB is free" in running.raised("nearly_full", "memory of")["message"]


def see_an_audit_log_that_was_changed(running: Running) -> None:
    def change(action: str) -> str:
        with psycopg.connect(running.postgres.url, autocommit=True) as database:
            first = "(SELECT min(id) FROM web_auditentry)"
            (before,) = database.execute(f"SELECT action FROM web_auditentry WHERE id = {first}").fetchone() or ("",)
            database.execute(f"UPDATE web_auditentry SET action = %s WHERE id = {first}", [action])
            return str(before)

    with signed_in(running) as browser:
        before = change("forged")
        browser.post("/audit/verify/").raise_for_status()
        assert "is broken" in (item := running.raised("audit_broken"))["message"]
        assert item["since"]
        change(before)
        browser.post("/audit/verify/").raise_for_status()
        running.cleared("audit_broken")


def see_who_cannot_be_stopped_for_others(running: Running) -> None:
    item = running.raised("no_turns")
    assert item["container"] in {running.named(name)["id"] for name in ("one", "two")}
    running.act({"id": item["container"]}, "kill")
    running.cleared("no_turns")


def test_a_database_that_is_away(running: Running) -> None:
    async def watch() -> None:
        cookie = await asyncio.to_thread(cookie_of_admin, running)
        address = f"{running.url.replace('http', 'ws', 1)}/ws/dashboard/"
        headers = {"Cookie": cookie, "Origin": running.url}
        async with connect(address, additional_headers=headers, open_timeout=PATIENCE) as socket:
            await says(socket, lambda data: "attention" in data)
            await asyncio.to_thread(running.postgres.stop)
            try:
                await says(socket, lambda data: data["attention"].get("database_away"))
                with pytest.raises(httpx.HTTPStatusError, match="503"):
                    await asyncio.to_thread(running.items, "database_away")  # nobody can tell who asks
            finally:
                await asyncio.to_thread(running.postgres.start)
            await says(
                socket, lambda data: "database_away" in data["attention"] and not data["attention"]["database_away"]
            )

    asyncio.run(asyncio.wait_for(watch(), 60))
    until(lambda: http.get(f"{running.url}/readyz").status_code == 200)
    running.cleared("database_away")


def test_a_card_that_is_gone(running: Running) -> None:
    """At the next start the driver shows another card; it matters as long as somebody has a quota on the first one."""
    here = running.holds("here")
    running.is_in(here, "running")
    restart(running, GPUSHARE_GPUS="sim:1x2GiB")
    assert running.raised("gpu_gone")["message"].startswith("GPU 0 is gone")
    running.act(here, "kill")
    running.cleared("gpu_gone")


def test_every_kind_is_among_these() -> None:
    raised = set(re.findall(r'raised\("(\w+)"', Path(__file__).read_text())) | {"database_away"}
    raised |= {"other_release", "not_restored"}  # tests/nodes/test_silence.py, tests/scheduler/test_shared_memory.py
    raised |= {"waiting", "holding", "failing", "scheduler_away", "engine_away"}  # tests/web/test_attention.py
    raised |= {"above_share"}  # tests/web/test_fair_share.py
    raised |= {"announced", "reserved_short"}  # tests/web/test_announcements.py, test_reservations.py
    program = (
        "import django, json; django.setup(); from web.services.attention import Kind; print(json.dumps(list(Kind)))"
    )
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "appliance.settings"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environ, capture_output=True, check=True)
    assert raised == set(json.loads(done.stdout))


def restart(running: Running, **environ: str) -> None:
    running.process.send_signal(signal.SIGTERM)
    running._reap()
    running._environ |= environ
    running.start()


@contextlib.contextmanager
def signed_in(running: Running) -> Iterator[httpx.Client]:
    """A browser of the admin."""
    with httpx.Client(base_url=running.url, timeout=30) as browser:
        page = browser.get("/login/").raise_for_status().text
        (hidden,) = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        form = {"csrfmiddlewaretoken": hidden, "username": "admin", "password": running.token}
        assert browser.post("/login/", data=form).is_redirect
        browser.headers["X-CSRFToken"] = browser.cookies["csrftoken"]
        yield browser


def cookie_of_admin(running: Running) -> str:
    with signed_in(running) as browser:
        return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


async def says(socket: Any, wanted: Callable[[dict[str, Any]], Any]) -> None:
    """Returns when a message of the feed has what is wanted of its attention."""
    while True:
        data = json.loads(await socket.recv()).get("data", {})
        if "attention" in data and wanted(data):
            return
