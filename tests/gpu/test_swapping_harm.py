"""Whoever is killed while memory moves between a real card and the host: nothing is lost that need not be."""

import itertools
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from appliance import database
from tests.gpu.conftest import Appliance
from tests.gpu.swapped import Held, card_empties, on_card
from tests.gpu.test_swapping import Record, host_memory, whole_card

__all__ = ["host_memory", "whole_card"]
pytestmark = [pytest.mark.gpu, pytest.mark.docker, pytest.mark.timeout(300)]
SIZE = 6  # GiB: out in some three seconds, in again in one
STAGES = {"pause": "leaving", "resume": "coming"}  # as the scheduler writes them before the first step
WITHIN = 20.0  # seconds in which a driver answers again, if it does
NUMBERS = itertools.count(1)
BODIES = {"pause": {"free_memory": True}, "resume": {}}


@pytest.fixture
def held(whole_card: Appliance) -> Iterator[Held]:
    made = Held(whole_card, whole_card.home.parent / f"killed-{next(NUMBERS)}", SIZE)
    yield made
    with suppress(AssertionError, httpx.HTTPError):
        made.end()
    card_empties()


@contextmanager
def under_way(held: Held, kind: str) -> Iterator[None]:
    """It is asked for, and the memory is on its way; whatever the answer, if there is one."""

    def ask() -> None:
        with suppress(httpx.HTTPError):
            held.appliance.client.post(f"/api/v1/containers/{held.id}/{kind}/", json=BODIES[kind])

    asking = threading.Thread(target=ask)
    asking.start()
    held.appliance.until(lambda: stage(held) == STAGES[kind], f"the {kind} to be under way")
    yield
    asking.join()


def stage(held: Held) -> str:
    """How far its swapping is, by its row: no page shows it so exactly."""
    with closing(sqlite3.connect(f"file:{database.place(held.appliance.home)}?mode=ro", uri=True)) as rows:
        found = rows.execute("SELECT swap FROM web_container WHERE id = ?", [held.id.replace("-", "")]).fetchone()
    return str(found[0])


def helpers(scheduler: int) -> list[int]:
    children = Path(f"/proc/{scheduler}/task/{scheduler}/children").read_text().split()
    return [int(pid) for pid in children if b"card/worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def kill_helpers(appliance: Appliance) -> int:
    pids = helpers(appliance.part("scheduler"))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def kill_scheduler(appliance: Appliance) -> None:
    killed = appliance.part("scheduler")
    os.kill(killed, signal.SIGKILL)

    def another() -> bool:
        with suppress(StopIteration, OSError):
            return appliance.part("scheduler") != killed
        return False

    appliance.until(another, "another scheduler")
    appliance.until(appliance.ready, "the new scheduler to be ready")


def outcome(held: Held, kind: str) -> str:
    """Waits until the last command of this kind is done."""

    def last() -> dict[str, str]:
        answer = held.appliance.client.get("/api/v1/commands/")
        return next((each for each in answer.json()["results"] if each["kind"] == kind), {})

    held.appliance.until(lambda: bool(last().get("done")), f"the {kind} to be done")
    return f"{last()['outcome']}: {last()['message']}"


def test_a_helper_killed_on_the_way_out(held: Held, record: Record) -> None:
    with under_way(held, "pause"):
        killed = kill_helpers(held.appliance)
    said = outcome(held, "pause")
    held.appliance.state_becomes(held.id, "running")
    held.is_right()
    record(f"{killed} helpers killed on the way out: {said}; it runs, every byte right")
    assert killed
    assert said.startswith("refused")
    took = f"out {held.out():.2f} s, in {held.back():.2f} s"
    held.is_right()
    record(f"the next pause: {took}; every byte right")


@pytest.mark.parametrize("kind", ["pause", "resume"])
def test_a_scheduler_killed_in_the_middle(held: Held, kind: str, record: Record) -> None:
    if kind == "resume":
        held.out()
    with under_way(held, kind):
        kill_scheduler(held.appliance)
    said = outcome(held, kind)
    if kind == "pause":
        held.appliance.state_becomes(held.id, "swapped")
        assert not on_card()
        held.back()
    held.appliance.state_becomes(held.id, "running")
    held.is_right()
    record(f"the scheduler killed in a {kind}: {said}; every byte right")


def test_a_scheduler_killed_while_the_memory_is_out(held: Held, record: Record) -> None:
    held.out()
    kill_scheduler(held.appliance)
    assert held.appliance.get(held.id)["state"] == "swapped"
    back = held.back()
    held.is_right()
    record(f"the scheduler killed while it was out: in {back:.2f} s, every byte right")


@pytest.mark.parametrize("moment", ["pause", "out", "resume"])
def test_a_program_killed_gives_all_of_it_back(held: Held, moment: str, record: Record) -> None:
    (pid,) = on_card()
    if moment != "pause":
        held.out()
    if moment == "out":
        os.kill(pid, signal.SIGKILL)
        held.appliance.command(held.id, "resume")  # a frozen one takes the signal when it goes on
    else:
        with under_way(held, moment):
            os.kill(pid, signal.SIGKILL)
    ended = held.appliance.state_becomes(held.id, "failed", "killed")
    card_empties()
    record(f"the program killed ({moment}): {ended['state']}, {ended['reason']!r}; the card is empty")
    held.appliance.until(lambda: held.appliance.get(held.id)["gpus"][0]["used"] == 0, "its charge to be gone")


def test_a_kill_while_it_is_out_and_one_in_a_pause(held: Held, record: Record) -> None:
    with under_way(held, "pause"):
        begun = time.monotonic()
        done, message = held.appliance.command(held.id, "kill")
    took = time.monotonic() - begun
    record(f"a kill in the middle of a pause: {message} ({took:.1f} s)")
    assert done
    held.appliance.state_becomes(held.id, "killed")


def test_z_a_helper_killed_on_the_way_back(held: Held, record: Record) -> None:
    """Last: where a call was broken off in a restore, the driver answers nothing more about that process."""
    held.out()
    with under_way(held, "resume"):
        killed = kill_helpers(held.appliance)
    with suppress(AssertionError):  # either may be: the report says which
        held.appliance.until(lambda: stage(held) == "", "it to be back", WITHIN)
    found = held.appliance.get(held.id)["state"]
    if found == "running":
        held.is_right()
        found += ", every byte right"
    record(f"{killed} helpers killed on the way back: it is {found}")
    done, message = held.appliance.command(held.id, "kill")
    record(f"then killed: {message}")
    assert done
    card_empties()
    other = Held(held.appliance, held.folder.with_name("after-that"), 1)
    record(f"another after that: out {other.out():.2f} s, in {other.back():.2f} s")
    other.is_right()
    other.end()
