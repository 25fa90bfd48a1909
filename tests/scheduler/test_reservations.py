"""Reserved memory is there when its time comes: over holders, restarts, clocks that are set, and no-shows."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from scheduler.core import reserved
from scheduler.core.reserved import NO_SHOW
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess, a_host_inside
from tests.support.inprocess.memory import notebook, runs_cell
from web.models import Gpu, Reservation, ReservedGpu

HOLDS = ("workload", "--bytes", "3GiB", "--hold", "1000000")
ADAS = ("workload", "--bytes", "2GiB", "--hold", "1000000")
SOON, LONG = 600.0, 7200  # seconds until it begins; minutes that it lasts


@pytest.fixture
async def lab(virtual_time: None, database: None, settings: Any) -> AsyncIterator[InProcess]:
    """A host with one card of 5 GiB, where nobody gives way to who waits."""
    settings.GPUSHARE_GIVE_WAY = "off"
    async with a_host_inside(settings, "fair") as host:
        yield host


def date(host: InProcess) -> datetime:
    return datetime.fromtimestamp(host.clock.wall(), UTC)


async def reserve(host: InProcess, after: float = SOON, up: bool = True, **fields: Any) -> float:
    """3 GiB for ada, from the next full minute after so long. The loop's time when it begins. `up`: it is heard of."""
    at = (date(host) + timedelta(seconds=after + 60)).replace(second=0, microsecond=0)

    def write() -> None:
        ada, _ = User.objects.get_or_create(username="ada")
        rest = {"gpu_memory": 3 * GIB, "zone": "UTC", "minutes": LONG, "over_at": at + timedelta(minutes=LONG)}
        made = Reservation.objects.create(user=ada, starts=f"{at:%Y-%m-%dT%H:%M}", made_by="ada", **rest | fields)
        ReservedGpu.objects.create(reservation=made, gpu=Gpu.objects.get())

    await query(write)
    if up:
        host.up.reservations.wake()
        await host.eventually(lambda: host.up.broker.state.reserves)
    return host.loop.time() + (at - date(host)).total_seconds()


async def comes(host: InProcess, moment: float) -> None:
    """It is so late: all but the last minute passes at once."""
    await host.passes(max(0.0, moment - host.loop.time() - 60))
    await asyncio.sleep(max(0.0, moment - host.loop.time()))


def free_for(host: InProcess, person: str) -> int:
    (gpu,) = host.up.broker.state.gpus
    return reserved.free(host.up.broker.state, gpu, person)


async def short(host: InProcess) -> int:
    await host.up.store.flush()
    return (await query(ReservedGpu.objects.get)).short


async def test_a_holder_is_moved_in_time_and_comes_back_when_there_is_room(lab: InProcess) -> None:
    bobs = await notebook(lab, owner="bob")
    begins = await reserve(lab)
    assert (await lab.get(bobs)).state == "running"
    await comes(lab, begins - 5)
    assert free_for(lab, "ada") >= 3 * GIB
    out = await lab.get(bobs)
    assert (out.gave_way, out.gave_way_to.startswith("reservation 1 of ada, ")) == ("booked", True)
    (event,) = await lab.eventually(lambda: lab.events(bobs, "swapped_out"))
    assert event.detail.startswith('Its memory was reserved, and gave way to "reservation 1 of ada')
    adas = await lab.launch(*ADAS, gpu_memory=3 * GIB, owner="ada")
    await lab.says(adas, "holding")
    await lab.passes(60 * LONG + 60)
    await asyncio.sleep(1)
    assert (await lab.get(adas)).state == "running"  # it is over, and nobody has to leave
    assert lab.up.broker.state.reserves == ()
    await lab.command("kill", adas)
    await runs_cell(lab, bobs)  # idle ones come back when they compute again
    assert (await lab.get(bobs)).state == "running"


async def test_whoever_cannot_be_moved_is_announced_before_and_it_begins_short(lab: InProcess) -> None:
    bobs = await lab.launch(*HOLDS, gpu_memory=4 * GIB, owner="bob", guaranteed=True)
    await lab.says(bobs, "holding")
    begins = await reserve(lab, after=1800)
    await comes(lab, begins - 1000)
    assert await short(lab) == 0
    await comes(lab, begins - 800)
    assert await short(lab) == 2 * GIB
    await comes(lab, begins + 2)
    assert await short(lab) == 2 * GIB
    assert (await lab.get(bobs)).state == "running"
    await lab.command("kill", bobs)
    await lab.eventually(lambda: free_for(lab, "ada") >= 3 * GIB)
    assert free_for(lab, "bob") == 2 * GIB
    await asyncio.sleep(1.5)
    assert await short(lab) == 0


async def test_where_it_says_so_they_end_with_a_grace(lab: InProcess) -> None:
    bobs = await lab.launch(*HOLDS, gpu_memory=4 * GIB, owner="bob", guaranteed=True)
    await lab.says(bobs, "holding")
    begins = await reserve(lab, if_short="end")
    await comes(lab, begins - 2)
    assert (await lab.get(bobs)).state == "running"
    await asyncio.sleep(5)
    ended = await lab.until(bobs, "killed")
    assert ended.reason.startswith("Its GPU memory is reserved: reservation 1 of ada")


async def test_a_full_host_moves_nobody_and_says_so(lab: InProcess) -> None:
    bobs = await lab.launch(*HOLDS, gpu_memory=4 * GIB, owner="bob")
    await lab.says(bobs, "holding")
    lab.up.swapping.budget = GIB
    lab.up.say_who_gives_way()
    begins = await reserve(lab)
    await comes(lab, begins + 2)
    assert (await lab.get(bobs)).state == "running"
    assert await short(lab) > GIB


async def test_a_restart_and_a_clock_that_is_set_change_nothing(lab: InProcess) -> None:
    begins = await reserve(lab)
    await comes(lab, begins + 2)
    assert free_for(lab, "bob") == 2 * GIB
    lab.clock.ahead = 2 * 60 * LONG  # by the date it is over
    await lab.passes(61)
    await asyncio.sleep(1)
    assert free_for(lab, "bob") == 2 * GIB
    lab.clock.ahead = 0
    await lab.stop()
    await lab.start()
    assert free_for(lab, "bob") == 2 * GIB
    blocked, _ = await lab.start_launch(*HOLDS, gpu_memory=3 * GIB, owner="bob")
    await lab.until(blocked, "suspended")
    assert "reserved for others" in (await lab.get(blocked)).queue_reason


async def test_one_that_nobody_comes_for_is_lent_and_comes_back_on_claim(lab: InProcess) -> None:
    begins = await reserve(lab)
    await comes(lab, begins + 2)
    bobs, _ = await lab.start_launch(*HOLDS, gpu_memory=4 * GIB, owner="bob")
    await lab.until(bobs, "suspended")
    await comes(lab, begins + NO_SHOW + 1)
    await lab.says(bobs, "holding")
    adas, _ = await lab.start_launch(*ADAS, gpu_memory=3 * GIB, owner="ada")
    await lab.says(adas, "holding")
    assert (await lab.get(bobs)).gave_way == "booked"


async def test_one_that_is_taken_back_gives_its_memory_to_who_waits(lab: InProcess) -> None:
    begins = await reserve(lab)
    await comes(lab, begins + 2)
    bobs, _ = await lab.start_launch(*HOLDS, gpu_memory=4 * GIB, owner="bob")
    await lab.until(bobs, "suspended")
    await query(Reservation.objects.update, over_at=date(lab))
    lab.up.reservations.wake()
    await lab.says(bobs, "holding")


async def test_between_two_times_of_a_series_without_a_gap_nobody_else_gets_it(lab: InProcess) -> None:
    begins = await reserve(lab, minutes=1440, repeat="daily", times=3, over_at=date(lab) + timedelta(days=4))
    await comes(lab, begins + 2)
    adas = await lab.launch(*ADAS, gpu_memory=3 * GIB, owner="ada")  # so that it is not lent
    await lab.says(adas, "holding")
    bobs, _ = await lab.start_launch(*HOLDS, gpu_memory=4 * GIB, owner="bob")
    await lab.until(bobs, "suspended")
    await comes(lab, begins + 86400 - 5)
    await lab.command("kill", adas)
    await comes(lab, begins + 86400 + 20)
    assert free_for(lab, "ada") >= 3 * GIB
    assert (await lab.get(bobs)).state == "suspended"


@pytest.mark.parametrize("if_short", ["short", "end"])
async def test_a_scheduler_that_starts_within_one_moves_holders_once_it_can(lab: InProcess, if_short: str) -> None:
    """Whether memory can be moved it learns only as it starts; until then nobody is refused a move, or ended for it."""
    bobs = await lab.launch(*HOLDS, gpu_memory=4 * GIB, owner="bob")
    await lab.says(bobs, "holding")
    await lab.stop()
    await reserve(lab, after=-120, up=False, if_short=if_short)
    await lab.start()
    await lab.until(bobs, "swapped")
    assert await lab.events(bobs, "not_moved") == []
