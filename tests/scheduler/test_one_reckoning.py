"""What the scheduler decides by is what everybody is told: what is free, and what a GPU can ever give."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core import admission, safety
from tests.support.host import GIB, MIB, Host, host, query
from web.models import Gpu
from web.sizes import format_size

__all__ = ["host"]


CONTEXT = 66 * MIB
HOLD = ("--check", "1MiB", "--hold", "600")


async def _told(*expected: int) -> None:
    """Waits until the record says so much is free, idle and the most."""
    async with asyncio.timeout(60):
        while True:
            card = await query(Gpu.objects.get)
            if (card.free, card.idle, card.most) == expected:
                return
            await asyncio.sleep(0.01)


async def test_free_and_idle_are_told_as_the_arbiter_has_them(host: Host) -> None:
    await _told(5 * GIB, 0, 5 * GIB)
    holder = await host.launch("workload", "--bytes", "1GiB", *HOLD, gpu_memory=3 * GIB)
    await host.says(holder, "holding")
    # Alone on the card: the whole quota is in its hand.
    await _told(2 * GIB, 2 * GIB - CONTEXT, 5 * GIB)
    waiter = await host.launch("workload", "--bytes", "4GiB", "--chunks", "1", *HOLD, gpu_memory=5 * GIB)
    await host.until(waiter, "suspended")
    free = safety.free(host.up.broker.state, next(iter(host.up.broker.state.gpus)))
    await _told(free, 0, 5 * GIB)
    assert free == 4 * GIB - 2 * CONTEXT
    assert f"; {format_size(free)} is free." in (await host.get(waiter)).queue_reason


async def test_what_is_reserved_is_neither_free_nor_idle(host: Host) -> None:
    holder = await host.launch("workload", "--bytes", "1GiB", *HOLD, gpu_memory=3 * GIB, guaranteed=True)
    await host.says(holder, "holding")
    await _told(2 * GIB, 0, 5 * GIB)
    told = await host.command("forecast", gpu_memory=4 * GIB, gpus=1)
    assert told.result["fits"] is False  # the headroom of a guaranteed container is nobody else's


@given(st.integers(0, 2**50))
def test_a_size_has_one_text(amount: int) -> None:
    assert admission.size(amount) == format_size(amount)
