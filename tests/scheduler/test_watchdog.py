"""Whatever holds up the loop is measured, and logged with what it was."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest

from scheduler import clock
from scheduler.watchdog import BEAT, LATE, Watchdog
from tests.support.eventually import PATIENCE, until
from tests.support.host import query
from tests.support.inprocess.clockwork import VirtualClock, VirtualLoop
from tests.support.inprocess.host import InProcess
from web.models import Node

# Collections whose callbacks let other threads run, and threads that end all the time.
LOOKS = """
import gc, threading, time, weakref
from scheduler.watchdog import _frame_of

class Thing: ...

def garbage():
    thing = Thing()
    thing.itself = thing
    return weakref.ref(thing, lambda _: time.sleep(0.001))

def others():
    while True:
        thread = threading.Thread(target=time.sleep, args=(0.0001,))
        thread.start()
        thread.join()

for _ in range(4):
    threading.Thread(target=others, daemon=True).start()
kept = []
for turn in range(600):
    gc.disable()
    kept.append(garbage())
    gc.set_threshold(1 + turn % 8)
    gc.enable()
    assert _frame_of(threading.get_ident())
    assert gc.isenabled()
print("through")
"""


@pytest.fixture
async def watchdog(virtual_time: None) -> AsyncIterator[Watchdog]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    clock.use(VirtualClock(loop))
    watchdog = Watchdog()
    running = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0)
    yield watchdog
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def hold_up(watchdog: Watchdog, seconds: float) -> None:
    """The loop stands for so long, and until the watchdog's thread has looked."""
    asyncio.get_running_loop().leap(seconds)  # type: ignore[attr-defined]
    until(lambda: watchdog._seen is not None)


async def test_what_held_up_the_loop_is_reported_with_how_long_it_was(
    watchdog: Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "scheduler.watchdog"):
        for _ in range(9):
            hold_up(watchdog, 5 * LATE)
            await asyncio.sleep(2 * BEAT)
    assert "hold_up (test_watchdog.py:" in caplog.messages[0]
    assert len(caplog.messages) == 4, "a loop that is held up all the time does not fill the log"
    assert 4 * LATE < watchdog.take_worst() <= 5 * LATE
    assert watchdog.worst == 0, "it is counted anew"


def test_it_is_reported_whether_the_scheduler_worked_or_stood(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one is a fault of ours; the other a busy machine, and who tries the demo there is to know that."""
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    watchdog = Watchdog()
    with caplog.at_level(logging.WARNING, "scheduler.watchdog"):
        watchdog._note()
        end = time.thread_time() + 2 * LATE
        while time.thread_time() < end:
            pass
        now[0] += 2 * LATE
        watchdog._come_back()
        now[0] += 5 * LATE
        watchdog._come_back()
    worked, stood = caplog.messages
    assert "the scheduler was busy with" in worked
    assert "this machine had no processor or disk free for the scheduler" in stood
    assert "nothing is lost" in stood


async def test_the_hosts_record_has_the_figure(host: InProcess) -> None:
    async def late() -> float:
        return float((await query(Node.objects.get)).late)

    host.loop.leap(3 * LATE)
    assert 2 * LATE < await host.eventually(late) <= 3 * LATE


def test_a_look_at_a_thread_never_makes_all_stand_still() -> None:
    """As it did with CPython before 3.11.8: with later ones this shows nothing."""
    done = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "through\n"
