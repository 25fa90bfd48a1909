"""All containers of one scheduler together take no more host memory than an admin meant for them."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import docker
import pytest

from scheduler.engines import kernel_log
from scheduler.engines.base import Condition, EngineError, Launch, Status
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.shared_cgroup import ROOT, SharedCgroup
from tests.engines.conftest import Opener, empty
from tests.support.eventually import eventually

pytestmark = pytest.mark.docker
Launcher = Callable[..., Launch]
MIB = 1 << 20
TOTAL = 96 * MIB
# Its first process has that much and keeps it: nobody reads what it wants to write.
HOLDS = "busybox mkfifo /tmp/p; sleep 600 < /tmp/p & exec dd if=/dev/zero of=/tmp/p bs={}M count=1"
ENDS_BY_ITSELF = "trap 'exit 3' USR1; while :; do sleep 0.1; done"


@pytest.fixture
async def engine(open_engine: Opener, a_launch: Launcher) -> AsyncIterator[DockerEngine]:
    async with open_engine(host_memory=TOTAL) as opened:
        if opened.memory_left() is None:  # systemd makes the slice with its first container
            first = await opened.launch(a_launch("sleep", "600"))
            await opened.kill(first.engine_id)
            await ended(opened)
            await opened.remove(first.engine_id)
        if opened.memory_left() is None:
            pytest.skip("nobody may limit control groups here")
        yield opened
        await empty(opened)


def group(engine: DockerEngine) -> SharedCgroup:
    assert engine._shared_cgroup is not None
    return engine._shared_cgroup


def folders(name: str) -> list[Path]:
    return [*ROOT.glob(name), *ROOT.glob(f"*/{name}")]


async def ended(engine: DockerEngine) -> Status:
    """The next."""
    async with asyncio.timeout(60):
        async for status in engine.changes():
            if status.condition is Condition.ENDED:
                return status
    raise AssertionError("the engine was closed")


async def test_the_one_that_is_ended_for_all_says_so_and_the_others_go_on(
    engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    if not kernel_log.can_be_read():
        pytest.skip("nobody may read the kernel's log here")
    bystander = await engine.launch(a_launch("/bin/sh", "-c", ENDS_BY_ITSELF, memory=16 * MIB))
    holders = [a_launch("/bin/sh", "-c", HOLDS.format(60), memory=90 * MIB) for _ in range(2)]
    for launch in holders:
        await engine.launch(launch)
    status = await ended(engine)
    assert status.id in {launch.id for launch in holders}
    said = "Out of host memory: all containers together exceeded their limit of 96 MiB"
    assert (status.exit_code, status.reason.partition(",")[0]) == (137, said)
    running = {each.id for each in await engine.statuses() if each.condition is Condition.RUNNING}
    assert len(running) == 2
    # Docker may take it for one that has passed its limit too, since all of a group are notified.
    docker_api.kill(bystander.engine_id, "USR1")
    assert docker_api.wait(bystander.engine_id)["StatusCode"] == 3
    own = await engine._watch.look(bystander.engine_id)
    assert own is not None
    assert (own.condition, own.exit_code, own.reason) == (Condition.ENDED, 3, "")
    assert await engine._watch.look(status.engine_id) == status


async def test_one_that_passes_its_own_limit_says_that(engine: DockerEngine, a_launch: Launcher) -> None:
    await engine.launch(a_launch("/bin/sh", "-c", HOLDS.format(60), memory=32 * MIB))
    assert (await ended(engine)).reason == "Out of host memory: it passed its limit of 32 MiB and was ended."


async def test_what_is_left_is_less_what_they_hold_and_a_raised_limit_stays_below_the_same_group(
    engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    assert 90 * MIB < (engine.memory_left() or 0) <= TOTAL
    holder = await engine.launch(a_launch("/bin/sh", "-c", HOLDS.format(60), memory=90 * MIB))
    await eventually(lambda: 20 * MIB < (engine.memory_left() or 0) < 36 * MIB)
    await engine.add_memory(holder.engine_id, 90 * MIB)  # as swapping does
    found = docker_api.inspect_container(holder.engine_id)
    assert (found["HostConfig"]["Memory"], found["HostConfig"]["CgroupParent"]) == (180 * MIB, group(engine).parent)
    assert engine.owns(holder.engine_id, found["State"]["Pid"])
    assert list(group(engine)._folder.glob(f"*{holder.engine_id}*/cgroup.procs"))  # systemd's has a longer name
    assert 20 * MIB < (engine.memory_left() or 0) < 36 * MIB


async def test_a_total_below_what_they_hold_ends_nobody_and_is_reported(
    engine: DockerEngine, open_engine: Opener, a_launch: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    holder = await engine.launch(a_launch("/bin/sh", "-c", HOLDS.format(60), memory=90 * MIB))
    await eventually(lambda: (engine.memory_left() or 0) < 36 * MIB)
    async with open_engine(host_memory=32 * MIB) as restarted:
        assert (
            "may take more than the 32 MiB of host memory that are meant for them (GPUSHARE_HOST_MEMORY)" in caplog.text
        )
        assert "Running containers hold 6" in caplog.text
        assert [each.condition for each in await restarted.statuses()] == [Condition.RUNNING]
        await restarted.kill(holder.engine_id)
        await restarted.remove(holder.engine_id)
        await eventually(lambda: group(restarted).hold() == "")
        assert 30 * MIB < (restarted.memory_left() or 0) <= 32 * MIB
    async with open_engine(host_memory=TOTAL) as raised:
        assert 90 * MIB < (raised.memory_left() or 0) <= TOTAL


async def test_an_empty_group_goes_with_its_scheduler(open_engine: Opener, a_launch: Launcher) -> None:
    async with open_engine(host_memory=TOTAL) as engine:
        if group(engine)._by_systemd:
            pytest.skip("slices are systemd's, which keeps them")
        await engine.launch(a_launch("sleep", "600"))
        name = group(engine).parent.strip("/")
        assert folders(name)
        await empty(engine)
    assert folders(name) == []


@pytest.mark.parametrize("fields", [{}, {"memory": 64 * MIB}, {"host_memory": 64 * MIB}])
async def test_more_memory_than_a_container_may_take_is_refused_with_the_figures(
    open_engine: Opener, a_launch: Launcher, fields: dict[str, int]
) -> None:
    async with open_engine(**fields) as engine:
        most = "64 MiB" if fields else "GiB"
        with pytest.raises(EngineError, match=f"100 TiB of host memory is more .* the most is .*{most}") as caught:
            await engine.launch(a_launch("true", memory=100 << 40))
        assert (caught.value.code, caught.value.field, caught.value.status) == ("memory_too_large", "memory", 400)
        assert await engine.statuses() == []


async def test_what_cannot_be_limited_is_reported_once(
    open_engine: Opener, a_launch: Launcher, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    async with open_engine(host_memory=TOTAL) as engine:
        await engine.launch(a_launch("sleep", "600"))
        await empty(engine)
    texts = [each.message for each in caplog.records if each.levelno == logging.WARNING and "together" in each.message]
    assert len(texts) == 1
    assert "The scheduler may not write to /sys/fs/cgroup" in texts[0]


# ---- what is not on this machine: files in the place of control groups ----------------------------------------------


@pytest.fixture
def second_version(tmp_path: Path) -> SharedCgroup:
    """Its files, as the kernel has them when there are containers."""
    made = SharedCgroup(tmp_path, {"CgroupDriver": "systemd", "CgroupVersion": "2"}, TOTAL, root=tmp_path)
    made._folder.mkdir(parents=True)
    (made._folder / "memory.max").write_text("max\n")
    (made._folder / "memory.current").write_text(f"{70 * MIB}\n")
    (made._folder / "memory.stat").write_text(f"anon {40 * MIB}\ninactive_file {20 * MIB}\nactive_file {MIB}\n")
    return made


def test_slice_gets_its_limit_in_the_second_version(second_version: SharedCgroup) -> None:
    assert second_version.path == f"/gpushare.slice/{second_version.parent}"
    assert second_version.left() is None
    assert second_version.hold() == ""
    assert (second_version._folder / "memory.max").read_text() == str(TOTAL)
    assert second_version.left() == TOTAL - 49 * MIB


def test_nothing_is_lowered_below_what_is_held_in_the_second_version(second_version: SharedCgroup) -> None:
    (second_version._folder / "memory.current").write_text(f"{200 * MIB}\n")
    assert second_version.hold() == "Running containers hold 179 MiB already."
    assert (second_version._folder / "memory.max").read_text() == "max\n"


def test_group_that_gets_no_limit_of_memory_says_where_that_is_switched_on(tmp_path: Path) -> None:
    made = SharedCgroup(tmp_path, {"CgroupDriver": "cgroupfs", "CgroupVersion": "2"}, TOTAL, root=tmp_path)
    assert made.hold() == f"{tmp_path}/cgroup.subtree_control lets no group below have a limit of memory."


def test_slice_is_made_by_systemd_alone(tmp_path: Path) -> None:
    made = SharedCgroup(tmp_path, {"CgroupDriver": "systemd", "CgroupVersion": "2"}, TOTAL, root=tmp_path)
    assert made.hold() == ""
    assert list(tmp_path.iterdir()) == []
