"""Moving to another card with real programs on the simulated cards, whose driver takes pairs as driver 580 does."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.host import GIB, Host, a_host, query
from tests.support.swapped import ASKER_DIES, RESTORE, at_once, ends_well, fault, holder
from web.models import Container, Gpu


@pytest.fixture
async def two(transactional_db: None, settings: Any, tmp_path: Path) -> AsyncIterator[Host]:
    async with a_host(settings, tmp_path, gpus="sim:2x5GiB") as host:
        yield host


def uuid(host: Host, index: int) -> str:
    return list(host.up.gpus.cards)[index]


async def real(host: Host) -> list[int]:
    await host.up.measure.once()
    await host.up.store.flush()
    return await query(lambda: list(Gpu.objects.order_by("index").values_list("real", flat=True)))


async def move(host: Host, container: Container, index: int) -> None:
    done = await host.command("move", container, gpu=uuid(host, index))
    assert (done.outcome, done.message) == ("done", f"It is on GPU {index}.")


async def test_ten_moves_and_every_byte_is_right(two: Host) -> None:
    container = await holder(two, gpu_uuids=[uuid(two, 0)])
    for number in range(1, 11):
        await move(two, container, number % 2)
        held = await real(two)
        assert held[number % 2] > 2 * GIB
        assert held[1 - number % 2] == 0
    assert (await two.claim(container)).gpu.index == 0
    await ends_well(two, container)
    assert await eventually(lambda: real(two)) == [0, 0]


async def test_what_computes_goes_on_there_beside_another(two: Host) -> None:
    at_once()
    words = ("workload", "--bytes", "64MiB", "--compute", "3600")
    both = [await two.launch(*words, gpu_uuids=[uuid(two, index)]) for index in range(2)]
    for container in both:
        await two.says(container, "computed")
    for index in (1, 0, 1):
        await move(two, both[0], index)
        for container in both:  # each second that it computes is a line
            lines = two.log(container).count("computed")
            await eventually(lambda it=container, before=lines: two.log(it).count("computed") > before + 1)  # type: ignore[misc]


async def test_a_helper_that_is_killed_within_a_restore_is_replaced(two: Host) -> None:
    container = await holder(two, gpu_uuids=[uuid(two, 0)])
    fault(RESTORE, ASKER_DIES)
    await two.command("move", container, gpu=uuid(two, 1))
    await eventually(lambda: two.up.broker.live_containers[str(container.pk)].swap == "")
    assert (await real(two))[0] == 0
    await ends_well(two, container)


async def test_pairs_that_do_not_name_every_card_are_refused_and_nothing_is_lost(
    two: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await holder(two, gpu_uuids=[uuid(two, 0)])
    monkeypatch.setattr(two.up.sessions, "pairs", lambda cards, its: [[(cards["from"], cards["to"])]])
    done = await two.command("move", container, gpu=uuid(two, 1))
    assert (done.code, "CUDA error 1" in done.message) == ("not_movable", True)
    await eventually(lambda: two.up.broker.live_containers[str(container.pk)].swap == "")
    assert (await real(two))[1] == 0
    await ends_well(two, container)
