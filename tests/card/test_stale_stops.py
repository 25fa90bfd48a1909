"""Whom a worker has stopped, and another worker has let go: the first has no more to do with it."""

from __future__ import annotations

import asyncio

from scheduler.card.helper import CardHelper, State
from tests.card.test_guardian import program
from tests.support.card import Card

LONG = 30.0


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
