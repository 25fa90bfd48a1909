"""A card out of service gets nothing new, by an admin's word or by a fault of its own; what runs there goes on."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.utils import timezone

from scheduler.monitors.cards import faults
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess, a_host_inside
from web.models import AuditEntry, Claim, Container, Gpu, Notice, Watch
from web.notifying import happenings
from web.services.attention import Kind, items


@pytest.fixture
async def two(virtual_time: None, database: None, settings: Any) -> AsyncIterator[InProcess]:
    async with a_host_inside(settings, gpus="sim:2x2GiB") as host:
        yield host


def uuid(host: InProcess, index: int = 0) -> str:
    return list(host.cards.cards)[index]


async def index_of(container: Container) -> int:
    return (await query(Claim.objects.select_related("gpu").get, container=container)).gpu.index


async def card(host: InProcess, index: int = 0) -> Gpu:
    await host.settle()
    return await query(Gpu.objects.get, uuid=uuid(host, index))


async def test_nothing_new_comes_to_it_and_what_is_there_goes_on(two: InProcess) -> None:
    before = await two.launch("workload", "--bytes", "512MiB", "--hold", "600", gpu_memory=GIB)
    await two.says(before, "holding")
    await two.command("drain-gpu", gpu=uuid(two), reason="new fans")
    for _ in range(3):  # more than the other has been promised
        assert await index_of(await two.launch("sleep", "600", gpu_memory=GIB)) == 1
    _, refused = await two.start_launch("sleep", "600", gpu_uuids=[uuid(two)])
    assert (await two.answer(refused)).code == "gpu_drained"
    assert (await two.get(before)).state == "running"
    assert [event.detail for event in await two.events(before, "card_drained")] == ["new fans"]
    await two.stop()
    await two.start()
    _, both = await two.start_launch("sleep", "600", gpu_count=2)
    assert (await two.answer(both)).code == "gpu_drained"  # kept over a restart
    assert (await two.command("undrain-gpu", gpu=uuid(two))).outcome == "done"
    assert (await card(two)).drained_at is None
    await two.launch("sleep", "600", gpu_count=2, gpu_memory=GIB)


@pytest.mark.parametrize(
    ("shows", "says"),
    [
        *(({"xid": xid}, f"XID {xid}") for xid in faults.XIDS),
        ({"ecc_errors": faults.MOST_ECC + 1}, "more than 10 uncorrected"),
        ({"remap_failed": True}, "could not be remapped"),
        ({"remap_pending": True}, "XID 63"),
        ({"temperature": 95}, "switches off"),
        (None, "fallen off the bus"),
    ],
)
async def test_a_fault_takes_it_out_and_admins_and_owners_are_notified(two: InProcess, shows: Any, says: str) -> None:
    await query(Watch.objects.create, pk=1, event=0)
    for owner in ("ada", "bob"):  # neither is moved off it
        await two.launch("sleep", "600", gpu_memory=GIB // 2, gpu_uuids=[uuid(two)], owner=owner, give_way=False)
    if shows is None:
        two.cards.silent.add(uuid(two))
    else:
        two.cards.faulty[uuid(two)] = shows
    found = await card(two)
    await two.up.service.look()
    assert found.drained_at
    assert says in found.drain_reason
    assert (await card(two, 1)).drained_at is None
    entry = await query(AuditEntry.objects.get, action="drain-gpu")
    assert (entry.actor, entry.subject, entry.detail["reason"]) == ("gpushare", found.uuid, found.drain_reason)
    reported = await query(lambda: [each for each in items() if each.kind is Kind.DRAINED])
    persons = sorted((each.person, found.drain_reason in each.message) for each in reported)
    assert persons == [("", True), ("ada", False), ("bob", False)]
    assert reported[1].message.endswith("still runs on GPU 0.")  # beneath the card, whose sentence is said once
    await query(happenings.look, timezone.now())
    notices = await query(lambda: list(Notice.objects.all()))
    assert [(each.kind, found.drain_reason in each.message) for each in notices] == [("card", True)] * 2


@pytest.mark.parametrize("shows", [{"xid": 31}, {"ecc_errors": 2}, {"temperature": 94}])
async def test_what_a_program_did_or_what_is_little_does_not(two: InProcess, shows: dict[str, Any]) -> None:
    two.cards.faulty[uuid(two)] = shows
    assert (await card(two)).drained_at is None


async def test_a_person_puts_it_back_and_what_lasts_does_not_take_it_out_again(two: InProcess) -> None:
    two.cards.faulty[uuid(two)] = {"remap_failed": True}
    assert (await card(two)).drained_at
    await two.command("undrain-gpu", gpu=uuid(two))
    assert (await card(two)).drained_at is None
    await two.stop()
    await two.start()
    assert (await card(two)).drained_at is None
    two.cards.faulty[uuid(two)] = {"remap_failed": True, "xid": 48}  # something new
    assert "XID 48" in (await card(two)).drain_reason
