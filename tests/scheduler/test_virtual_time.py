"""Virtual time stands still while any thread is at work."""

import asyncio
import threading

import pytest

from tests.support.inprocess.clockwork import VirtualLoop


@pytest.mark.usefixtures("virtual_time")
async def test_a_call_goes_on_whose_asker_was_cancelled() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    begun, ends = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        assert ends.wait(60)

    asker = asyncio.create_task(asyncio.to_thread(call))
    while not begun.is_set():  # noqa: ASYNC110 - a thread's flag; to wait for it in a thread would be one more at work
        await asyncio.sleep(0)
    asker.cancel()
    await asyncio.gather(asker, return_exceptions=True)
    assert loop.at_work == 1
    ends.set()
    await asyncio.sleep(1)
    assert loop.at_work == 0
