"""Asking whether the card is done, while the memory is moved: a driver that is asked then ends the process."""

import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from scheduler.card.helper import CardError, CardHelper
from tests.support.card import MIB
from tests.support.eventually import eventually, until

LONG = 30.0
# Each in a loop, in a thread of its own; `turns` counts their rounds, `wrong` what was answered that is no success.
ASK = """
import time
stream, event, other, free = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
lib.cuStreamCreate(ctypes.byref(stream), 0)
for each in event, other:
    lib.cuEventCreate(ctypes.byref(each), 0)
    lib.cuEventRecord(each, stream)
lib.cuCtxSynchronize()
context = ctypes.c_void_p()
lib.cuCtxGetCurrent(ctypes.byref(context))
asks = {
    "cuCtxSynchronize": lambda: lib.cuCtxSynchronize(),
    "cuCtxSynchronize_v2": lambda: lib.cuCtxSynchronize_v2(context),
    "cuStreamSynchronize": lambda: lib.cuStreamSynchronize(stream),
    "cuStreamSynchronize_ptsz": lambda: lib.cuStreamSynchronize_ptsz(stream),
    "cuStreamQuery": lambda: lib.cuStreamQuery(stream),
    "cuStreamQuery_ptsz": lambda: lib.cuStreamQuery_ptsz(stream),
    "cuEventSynchronize": lambda: lib.cuEventSynchronize(event),
    "cuEventQuery": lambda: lib.cuEventQuery(event),
    "cuEventElapsedTime": lambda: lib.cuEventElapsedTime(ctypes.byref(free), event, other),
    "cuEventElapsedTime_v2": lambda: lib.cuEventElapsedTime_v2(ctypes.byref(free), event, other),
}
turns, wrong = lib.asked = dict.fromkeys(asks, 0), []
def go_on(name):
    lib.cuCtxSetCurrent(context)
    while True:
        if result := asks[name]():
            wrong.append([name, result])
        turns[name] += 1
        time.sleep(0.001)
for name in asks:
    threading.Thread(target=go_on, args=[name], daemon=True).start()
answer = 0
"""
TURNS = "import time; time.sleep({}); answer = [list(lib.asked[0].values()), lib.asked[1]]"


@pytest.fixture
async def helper(card) -> AsyncIterator[CardHelper]:
    card.order("sim_card_speed", 0, 0)
    helper = CardHelper(card.env())
    yield helper
    await helper.close()


@pytest.fixture
def asking(program, grants):
    cuda = program(grants)
    cuda.use()
    cuda.new("cuMemAlloc_v2", 8 * MIB)
    cuda.run(ASK)
    go_round(cuda)
    return cuda


def go_round(cuda) -> None:
    """All of them are answered, rightly."""
    before, wrong = cuda.run(TURNS.format(0))
    until(lambda: all(now > then + 2 for now, then in zip(cuda.run(TURNS.format(0))[0], before, strict=True)))
    assert cuda.run(TURNS.format(0))[1] == wrong == []


async def test_whoever_asks_while_the_memory_is_away_waits_until_it_is_back(asking, grants, helper) -> None:
    page = grants.only_peer().page
    page.hold(True)
    await helper.lock(asking.pid, LONG)
    await eventually(lambda: page.inside == 0)
    await helper.checkpoint(asking.pid, LONG)
    # One that had its answer may not have counted it yet; after that it waits.
    await eventually(lambda: asking.run(TURNS.format(0))[0] == asking.run(TURNS.format(0.1))[0])
    before, _ = asking.run(TURNS.format(0))
    assert all(now <= then + 1 for now, then in zip(asking.run(TURNS.format(0.1))[0], before, strict=True))
    await helper.restore(asking.pid, LONG)
    await helper.unlock(asking.pid, LONG)
    page.hold(False)
    go_round(asking)


async def test_a_lock_alone_holds_nobody_back_who_asks(asking, helper) -> None:
    await helper.lock(asking.pid, LONG)
    go_round(asking)
    await helper.unlock(asking.pid, LONG)


async def test_where_nobody_holds_them_back_the_driver_ends_the_process(asking, helper) -> None:
    """As a real one does: else the first of these shows nothing."""
    await helper.lock(asking.pid, LONG)
    with contextlib.suppress(CardError):  # it has ended before the answer
        await helper.checkpoint(asking.pid, LONG)
    assert asking.process.wait(LONG) == -signal.SIGSEGV


def test_without_a_scheduler_everything_is_asked_as_ever(program, card, tmp_path) -> None:
    cuda = program(type("Nobody", (), {"env": lambda self: {"GPUSHARE_SOCKET": str(tmp_path / "none")}})())
    cuda("cuInit", 0)
    assert cuda.result("cuStreamQuery", 0) != 0  # no context: the driver's own answer
