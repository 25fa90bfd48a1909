"""Whom a worker has stopped, and another worker has let go: the first has no more to do with it."""

import asyncio

import pytest

from scheduler.card.helper import CardError, CardHelper, State
from tests.card.test_guardian import program
from tests.support.card import Card

LONG = 30.0
UNLOCK, FAILS = 4, 1


async def test_a_worker_whose_scheduler_dies_lets_nobody_go_whom_another_has_let_go_since(
    card: Card, helper: CardHelper
) -> None:
    """Else it would let go who is just being moved, within that."""
    one, two = program(card), program(card)
    calls = CardHelper(card.env())
    await asyncio.gather(*(calls.stop(each.pid, LONG) for each in (one, two)))
    workers = list(calls._idle)
    assert len(workers) == 2
    for each in (one, two):
        await calls.unlock(each.pid, LONG)  # by whichever worker is at hand
    for each in (one, two):
        await helper.lock(each.pid, LONG)  # to be moved: by a worker that is about to be asked for more
    for worker in workers:
        worker.stdin.close()  # as by the scheduler's death
    await asyncio.gather(*(worker.wait() for worker in workers))
    assert [await helper.state(each.pid, LONG) for each in (one, two)] == [State.LOCKED, State.LOCKED]
    for each in (one, two):
        await helper.unlock(each.pid, LONG)


async def test_one_whom_another_worker_stops_later_is_forgotten_by_the_first(card: Card, helper: CardHelper) -> None:
    """It was let go by somebody else meanwhile, or has ended, and this is another process of its number."""
    one = program(card)
    calls = CardHelper(card.env())
    await calls.stop(one.pid, LONG)
    (first,) = calls._idle
    await helper.unlock(one.pid, LONG)
    await calls.prepare(2)  # the last is asked first
    await calls.stop(one.pid, LONG)
    await calls.unlock(one.pid, LONG)
    await helper.lock(one.pid, LONG)  # to be moved
    assert first.stdin is not None
    first.stdin.close()  # as by the scheduler's death
    await first.wait()
    assert await helper.state(one.pid, LONG) is State.LOCKED
    await helper.unlock(one.pid, LONG)
    await calls.close()


@pytest.mark.parametrize("workers", [1, 2], ids=["by itself", "by another"])
async def test_a_worker_forgets_nobody_whose_unlock_has_failed(card: Card, helper: CardHelper, workers: int) -> None:
    """Scheduler and guardian may both be killed before it is tried again: then nobody else lets it go."""
    one = program(card)
    calls = CardHelper(card.env())
    await calls.stop(one.pid, LONG)
    (stopper,) = calls._idle
    await calls.prepare(workers)  # the last is asked first
    assert (calls._idle[-1] is stopper) is (workers == 1)
    card.order("sim_card_fault", UNLOCK, FAILS)
    with pytest.raises(CardError) as caught:
        await calls.unlock(one.pid, LONG)
    assert caught.value.state is State.LOCKED
    assert stopper.stdin is not None
    stopper.stdin.close()  # as by the scheduler's death
    await stopper.wait()
    assert await helper.state(one.pid, LONG) is State.RUNNING
    await calls.close()
