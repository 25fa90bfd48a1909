"""On a whole appliance: that its scheduler is away is notified, and who is slow to listen delays no decision."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support import hooks
from tests.support.appliance import Appliance, until
from tests.support.eventually import stands
from tests.support.lateness import beside_hooks

SECRET = "a secret of its own, long enough"


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    made = Appliance(tmp_path / "home")
    yield made
    made.close()


def notify(appliance: Appliance, name: str, url: str) -> None:
    body = {"name": name, "kind": "webhook", "url": url, "secret": SECRET}
    appliance.api("POST", "notifying/receivers/", body)
    appliance.api("POST", "notifying/rules/", {"receiver": name})


@contextmanager
def stopped_between_writes(appliance: Appliance) -> Iterator[None]:
    """Its scheduler, where it stands: within a write to SQLite, it would keep everybody else from writing, too."""
    scheduler = appliance.parts()["scheduler"]

    def stopped() -> bool:
        os.kill(scheduler, signal.SIGSTOP)
        until(lambda: stands(scheduler))
        with closing(sqlite3.connect(appliance.database, timeout=1, isolation_level=None)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                os.kill(scheduler, signal.SIGCONT)
                return False
        return True

    until(stopped)
    try:
        yield
    finally:
        os.kill(scheduler, signal.SIGCONT)


def test_a_scheduler_that_stands_still_is_reported_though_another_receiver_never_answers(appliance):
    with hooks.listening() as hook, hooks.dripping(1.0) as never:
        notify(appliance, "never", never)
        notify(appliance, "hook", hook.url)
        with stopped_between_writes(appliance):
            until(lambda: ("firing", "scheduler_away") in hook.statuses)
        assert len({heard.id for heard in hook.heard}) == len(hook.heard)
        assert appliance.api("GET", "notifying/deliveries/?receiver=never&open=true")["count"] >= 1


def test_a_receiver_that_never_answers_delays_no_decision(appliance):
    with hooks.dripping(0.5) as never:
        notify(appliance, "never", never)
        (receiver,) = appliance.api("GET", "notifying/receivers/")["results"]
        appliance.api("POST", f"notifying/receivers/{receiver['id']}/test/")
        tried = until(lambda: appliance.api("GET", "notifying/deliveries/?open=true")["results"][0]["tried_at"])
        made = appliance.launch("sleep", "600", gpu_memory="64MiB")
        until(lambda: appliance.named(made["name"])["state"] == "running")
        (waits,) = appliance.api("GET", "notifying/deliveries/?open=true")["results"]
        assert (waits["tried_at"], waits["error"]) == (tried, "")  # all that while it listened to nobody


@pytest.mark.long  # a figure; that such a receiver delays no decision is shown above
@pytest.mark.timeout(180)
def test_the_schedulers_loop_is_no_later_beside_receivers_that_are_down_slow_and_hang(tmp_path):
    late = beside_hooks(tmp_path / "home", turns=4, seconds=2.0)
    assert late.waited >= 3  # the slow one may have taken some of its own
    assert len(late.beside) > 100
    # Sent from its loop, the one that hangs would hold it for its 20 s. Beside a busy machine, twice is no difference.
    assert late.ratio < 2.0, f"{late.ratio:.2f} times as late"
    assert max(late.beside) < 5000
