"""A container never holds more than its quota, whatever its programs do."""

import asyncio
import os

from scheduler.sessions import lease_pages
from scheduler.sessions.live_containers import program_of
from shim.binding import Code, Frame, LeasePage, Type
from tests.support.host import GIB, MIB
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.programs import workload
from tests.support.raw import Raw

CONTEXT = 66 * MIB


async def test_allocation_beyond_the_quota_is_refused_and_the_program_goes_on(host: InProcess) -> None:
    container = await host.launch("workload", "--bytes", "2GiB", "--chunks", "16", "--go-on", gpu_memory=GIB)
    ended = await host.until(container, "exited")
    assert "out of memory" in host.log(container)
    assert ended.exit_code == 0
    claim = await host.returned(container)
    assert claim.peak <= GIB
    assert claim.peak > GIB - 2 * 128 * MIB
    rejected = await host.events(container, "rejected")
    assert [event.detail for event in rejected] == ["over_quota"] * len(rejected)
    assert rejected


async def test_two_processes_share_one_quota_which_each_sees_as_the_card(host: InProcess) -> None:
    go = host.home / "go"
    words = ("--bytes", "700MiB", "--until", str(go))
    container = await host.launch("workload", *words, gpu_memory=GIB)
    host.process(container).fork(workload, *words)
    assert (await host.process(container).memory())[1] == GIB
    await host.says(container, "out of memory")  # the other holds its memory until then
    go.touch()
    await host.until(container, "exited")
    assert (await host.returned(container)).peak <= GIB


async def test_forged_headroom_is_wiped_out_and_never_taken_back(host: InProcess) -> None:
    container = await host.launch("sleep", "600", gpu_memory=2 * GIB)
    raw = await asyncio.to_thread(Raw, host.up.server.socket_dir(str(container.pk)))
    page = await asyncio.to_thread(raw.hello)
    assert isinstance(page, LeasePage)
    raw.need(256 * MIB)
    answer = await asyncio.to_thread(raw.read)
    assert answer == Frame(Type.GRANTED, 0, 1, Code.OK, 256 * MIB)
    session = next(iter(host.up.broker.sessions.values()))
    lease = next(iter(session.leases.values()))
    granted = lease.granted
    page[0].extend(3 * GIB)
    host.up.broker.live_containers[str(container.pk)].note_peak(next(iter(session.leases)))
    assert lease.forged
    assert page[0].headroom == 0
    assert lease.used == lease.granted == granted
    page[0].extend(GIB)
    assert lease.take_back() == 0
    assert lease.granted == granted
    raw.close()


async def test_page_of_an_earlier_scheduler_brings_no_headroom_and_no_more_than_the_quota(host: InProcess) -> None:
    container = await host.launch("sleep", "600", gpu_memory=GIB)
    gpu = next(iter(host.up.gpus.cards))
    page = lease_pages.make(os.getpid(), str(container.pk), [lease_pages.Place(gpu, GIB, CONTEXT)])
    page[0].grant(3 * GIB)
    page[0].accept(3 * GIB)
    page[0].extend(512 * MIB)
    program = program_of(os.getpid())
    assert program is not None
    host.up.grants.note(os.getpid(), program.started, gpu)(3 * GIB)
    raw = await asyncio.to_thread(Raw, host.up.server.socket_dir(str(container.pk)))
    assert lease_pages.inode(await asyncio.to_thread(raw.hello)) == lease_pages.inode(page)
    assert page[0].headroom == 0
    (lease,) = next(iter(host.up.broker.sessions.values())).leases.values()
    assert lease.granted == lease.used == GIB
    raw.need(MIB)
    assert await asyncio.to_thread(raw.read) == Frame(Type.REJECTED, 0, 1, Code.OVER_QUOTA)
    raw.close()
    page.close()
