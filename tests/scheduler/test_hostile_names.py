"""What a program calls itself is read in many places, and is whatever it likes: bytes that are no text, our words."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from scheduler import proc
from scheduler.card.helper import is_stopped
from scheduler.engines.process import tree
from scheduler.monitors import activity
from scheduler.monitors.activity import MOST, PLACES, Habits, Look
from tests.scheduler.test_preemption_processes import NOTEBOOK, gives_way, lab, run_cell
from tests.support.eventually import until
from tests.support.host import BUILD, GIB, Host
from tests.support.swapped import at_once

__all__ = ["lab"]
NAMES = [b"\xff\xfe", b"ctxt_switches", b"\xe2\x82", b") S 1 (", b"a\nb:\t\r", b"\x1b[2J"]
CALLED = "open('/proc/self/comm', 'wb').write(bytes.fromhex({!r}))\n"


@pytest.fixture(params=NAMES, ids=repr)
def named(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this name that has said so, and waits."""
    program = CALLED.format(request.param.hex()) + "import time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_process_of_any_name_is_seen_like_every_other(named: subprocess.Popen[bytes]) -> None:
    found = proc.stat(named.pid)
    assert found is not None
    assert (found.parent, found.living) == (os.getpid(), True)
    assert any(each.pid == named.pid for each in tree.look()[os.getpid()])
    assert not is_stopped(named.pid)
    # It waits a moment after it has said so.
    look = until(lambda: (found := activity._look_at(named.pid, 10)).waits and found)
    assert look.used > 0
    assert look.threads == {named.pid}
    assert look.waits[named.pid][1] > 0


@pytest.mark.parametrize("name", [b"\xff", b"ctxt_switches"], ids=repr)
async def test_scheduler_starts_beside_one_that_gave_way_whatever_it_is_called(lab: Host, name: bytes) -> None:
    """It did not start any more, as long as that one lived: nobody else came back, or was given anything."""
    at_once()
    words = (sys.executable, "-c", CALLED.format(name.hex()) + NOTEBOOK, str(3 * GIB))
    container = await lab.launch(*words, gpu_memory=4 * GIB, environment={"PYTHONPATH": str(BUILD.parent)})
    await lab.says(container, "holding")
    _, other = await gives_way(lab, container)
    await lab.stop()
    await asyncio.wait_for(lab.start(), 60)
    run_cell(lab, container)
    await lab.command("kill", other)
    await lab.says(container, "cell 1 is right")


def test_what_is_remembered_of_a_program_is_bounded() -> None:
    """Which threads it has, and where they wait, it chooses: 512 new ones each second were kept until its end."""
    habits = Habits(Look(0.0, {}, frozenset()))
    for second in range(300):
        stays, comes = range(1, 9), range(1000 + second * MOST, 1000 + second * MOST + MOST - 8)
        waits = {thread: (("202", hex(second), "0x1"), second) for thread in [*stays, *comes]}
        habits.learn(Look(0.0, waits, frozenset(waits)))
    assert len(habits.places) <= MOST
    assert len(habits.stuck) <= MOST
    assert max(map(len, habits.places.values())) <= PLACES


def test_thread_that_runs_at_a_look_is_not_forgotten() -> None:
    there = {1: (("202", "0x1", "0x2"), 5)}
    habits = Habits(Look(0.0, {}, frozenset({1})))
    habits.learn(Look(0.0, there, frozenset({1})))
    habits.learn(Look(0.0, {}, frozenset({1})))
    assert habits.places == {1: {("202", "0x1", "0x2")}}
