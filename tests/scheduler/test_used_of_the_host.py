"""What a container uses of the host's processors and RAM: in its row, in the samples, and gone at its end."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest
from django.utils import timezone

from scheduler.parts import PERIODS
from tests.support.eventually import PATIENCE
from tests.support.host import MIB, Host, host, query
from web.history import samples
from web.models import Container, UsageSample

__all__ = ["host"]


pytestmark = pytest.mark.django_db(transaction=True)
LITTLE = (
    0.01  # processors: one that sleeps has less, once it has begun, and on a busy machine one that computes has more
)
HOLDS = f"held = bytearray({64 * MIB})\nwhile True: pass"


async def row_where(host: Host, made: Container, condition) -> Container:
    deadline = time.monotonic() + PATIENCE
    while not condition(row := await host.get(made)):
        assert time.monotonic() < deadline, (row.cpus_used, row.memory_used)
        await asyncio.sleep(0.05)
    return row


async def test_who_computes_on_the_host_is_shown_with_processors_and_ram_until_the_end(host: Host) -> None:
    busy = await host.launch(sys.executable, "-c", HOLDS)
    resting = await host.launch("sleep", "600")
    await row_where(host, busy, lambda row: (row.cpus_used or 0) > LITTLE and (row.memory_used or 0) >= 64 * MIB)
    calm = await row_where(host, resting, lambda row: row.cpus_used is not None and row.cpus_used < LITTLE)
    assert calm.memory_used < 64 * MIB

    def sampled() -> UsageSample | None:
        return UsageSample.objects.filter(container=busy, cpus_used__gt=LITTLE, memory_used__gte=64 * MIB).first()

    deadline = time.monotonic() + PATIENCE
    while await query(sampled) is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    past = await query(samples.container, await host.get(busy))
    assert max(each or 0 for each in past["cpus"]) > LITTLE
    assert max(each or 0 for each in past["memory"]) >= 64 * MIB
    claim = await host.claim(busy)
    then = await query(samples.moment, claim.gpu, timezone.now())
    assert next(each for each in then["containers"] if each["id"] == str(busy.pk))["memory"] >= 64 * MIB

    await host.command("kill", busy, grace=0)
    await host.returned(busy)
    ended = await host.get(busy)
    assert (ended.cpus_used, ended.memory_used) == (None, None)


async def test_an_engine_that_cannot_look_leaves_the_last_word_out_of_the_samples(host: Host) -> None:
    made = await host.launch("sleep", "600")
    await row_where(host, made, lambda row: row.memory_used is not None)
    host.up.engine.uses = lambda ids: {}  # type: ignore[method-assign]
    await host.up.using.look()
    assert host.up.using.now == {}
    assert PERIODS["use of the host"] <= 2
