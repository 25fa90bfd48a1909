"""What a container uses of the host's processors and RAM: in its row, in the samples, and gone at its end."""

import asyncio
from collections.abc import Iterable

import pytest

from scheduler import clock
from scheduler.engines.base import Use
from tests.support.host import MIB, query
from tests.support.inprocess.host import InProcess
from web.history import samples
from web.models import UsageSample


async def test_what_a_container_uses_of_the_host_is_shown_until_its_end(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, resting = await host.launch("sleep", "6000"), await host.launch("sleep", "6000")
    begun = host.loop.time()

    def uses(ids: Iterable[str]) -> dict[str, Use]:
        used = {str(busy.pk): Use(host.loop.time() - begun, 64 * MIB), str(resting.pk): Use(0.0, MIB)}
        return {id_: used[id_] for id_ in ids if id_ in used}

    monkeypatch.setattr(host.engine, "uses", uses)
    await asyncio.sleep(20)
    row, calm = await host.get(busy), await host.get(resting)
    assert (row.cpus_used, row.memory_used) == (pytest.approx(1, abs=0.1), 64 * MIB)
    assert (calm.cpus_used, calm.memory_used) == (0, MIB)
    assert await query(UsageSample.objects.filter(container=busy, cpus_used__gt=0.9, memory_used=64 * MIB).exists)
    then = await query(samples.moment, (await host.claim(busy)).gpu, clock.now())
    assert next(each for each in then["containers"] if each["id"] == str(busy.pk))["memory"] == 64 * MIB
    await host.command("kill", busy)
    await host.returned(busy)
    ended = await host.get(busy)
    assert (ended.cpus_used, ended.memory_used) == (None, None)
    past = await query(samples.container, ended)
    assert max(each or 0 for each in past["cpus"]) == pytest.approx(1, abs=0.1)
    assert max(each or 0 for each in past["memory"]) == 64 * MIB
    host.engine.uses = lambda ids: {}  # type: ignore[method-assign]
    await host.up.using.look()
    assert host.up.using.now == {}, "an engine that cannot look leaves the last word out of the samples"
