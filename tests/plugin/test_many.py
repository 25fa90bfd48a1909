"""Five hundred mountings at once: each has its answer and its folder, and the loop that decides is not held up."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest

from scheduler.plugin import driver
from tests.plugin.conftest import IMAGE, Lab
from tests.support.host import query
from web.models import Claim, Container

pytestmark = [pytest.mark.long, pytest.mark.docker]
MANY = 500
BEAT = 0.05  # seconds
HELD_UP = 1.0  # seconds of the processor from one beat of the loop to the next; far above what is seen


async def test_five_hundred_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "ANSWERS_WITHIN", None)  # how many get their answer in a minute, the machine decides
    await lab.docker("create", "--name", "many", "--network=none", *lab.volume("v", gpu_memory="1GiB"), IMAGE, "true")
    worked: list[float] = []

    def beat() -> None:
        worked.append(time.thread_time())
        if not reporting.done():
            asyncio.get_running_loop().call_later(BEAT, beat)

    async def mount(number: int) -> dict[str, Any]:
        return await lab.call("VolumeDriver.Mount", Name="v", ID=f"m{number}")

    reporting = asyncio.gather(*(mount(number) for number in range(MANY)))
    beat()
    reported = await reporting
    assert {each["Err"] for each in reported} == {""}
    assert len({each["Mountpoint"] for each in reported}) == MANY
    assert len(lab.up.broker.live_containers) == MANY
    assert await query(Container.objects.live().count) == await query(Claim.objects.count) == MANY
    late = max(after - before for before, after in pairwise(worked))
    assert late < HELD_UP, f"decisions were held up for {late:.2f} s of the processor"
    await asyncio.gather(*(lab.call("VolumeDriver.Unmount", Name="v", ID=f"m{number}") for number in range(MANY)))
    await lab.nothing_is_held()
