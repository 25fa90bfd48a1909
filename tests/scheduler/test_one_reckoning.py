"""What the scheduler decides by is what everybody sees: what is free, and what a GPU can ever give."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core import admission, safety
from tests.support.host import GIB, MIB, query
from tests.support.inprocess.host import InProcess
from web.models import Gpu
from web.sizes import format_size

CONTEXT = 66 * MIB
HOLD = ("--hold", "600")


async def _shows(host: InProcess, *expected: int) -> None:
    """The record says so much is free, idle and the most."""
    await host.settle()
    card = await query(Gpu.objects.get)
    assert (card.free, card.idle, card.most) == expected


async def test_free_and_idle_are_reported_as_the_arbiter_has_them(host: InProcess) -> None:
    await _shows(host, 5 * GIB, 0, 5 * GIB)
    holder = await host.launch("workload", "--bytes", "1GiB", *HOLD, gpu_memory=3 * GIB)
    await host.says(holder, "holding")
    # Alone on the card: the whole quota is in its hand.
    await _shows(host, 2 * GIB, 2 * GIB - CONTEXT, 5 * GIB)
    waiter = await host.launch("workload", "--bytes", "4GiB", "--chunks", "1", *HOLD, gpu_memory=5 * GIB)
    await host.until(waiter, "suspended")
    free = safety.free(host.up.broker.state, next(iter(host.up.broker.state.gpus)))
    await _shows(host, free, 0, 5 * GIB)
    assert free == 4 * GIB - 2 * CONTEXT
    assert f"; {format_size(free)} is free." in (await host.get(waiter)).queue_reason


async def test_what_is_reserved_is_neither_free_nor_idle(host: InProcess) -> None:
    holder = await host.launch("workload", "--bytes", "1GiB", *HOLD, gpu_memory=3 * GIB, guaranteed=True)
    await host.says(holder, "holding")
    await _shows(host, 2 * GIB, 0, 5 * GIB)
    forecast = await host.command("forecast", gpu_memory=4 * GIB, gpus=1)
    assert forecast.result["fits"] is False  # the headroom of a guaranteed container is nobody else's


@given(st.integers(0, 2**50))
def test_a_size_has_one_text(amount: int) -> None:
    assert admission.size(amount) == format_size(amount)
