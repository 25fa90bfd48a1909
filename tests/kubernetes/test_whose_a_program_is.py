"""Whose a program is says the folder that it sees, and not what somebody has called one: a pod may be hostile."""

import asyncio
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler.engines.docker.mounting.runs import folder_of, place_of
from tests.kubernetes.conftest import Lab
from tests.support.eventually import PATIENCE
from web.models import Container

MOUNTS = 'mount -t tmpfs none /run && mkdir /run/gpushare && mount --bind "$1" /run/gpushare && echo seen && sleep 600'

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making mounts needs root")


class Programs:
    """Each with mounts of its own, as those of a container have."""

    def __init__(self) -> None:
        self._all: list[asyncio.subprocess.Process] = []

    async def sees(self, folder: Path) -> int:
        """The pid of one that has this folder where the socket is."""
        words = ["unshare", "--mount", "sh", "-c", MOUNTS, "sh", str(folder)]
        process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, process_group=0)
        self._all.append(process)
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"seen\n"
        return process.pid

    async def end(self) -> None:
        for process in self._all:
            os.killpg(process.pid, 9)
            await process.wait()


@pytest.fixture
async def programs() -> AsyncIterator[Programs]:
    found = Programs()
    yield found
    await found.end()


@pytest.fixture
async def container(lab: Lab) -> Container:
    await lab.published()
    await lab.prepare(await lab.allocator.claim("1Gi"))
    (found,) = await lab.living()
    return found


async def test_a_program_with_its_folder_is_the_containers(lab: Lab, programs: Programs, container: Container) -> None:
    id_ = str(container.pk)
    pid = await programs.sees(lab.home / "sockets" / id_)
    assert lab.node._engine.owns(id_, pid)
    assert lab.node._engine.in_use() == {id_}


async def test_a_program_that_has_made_a_folder_of_that_name_is_not(
    lab: Lab, programs: Programs, container: Container, tmp_path: Path
) -> None:
    """Else its memory would be the other's guilt, and the other could be neither paused nor given back."""
    id_ = str(container.pk)
    for folder in (tmp_path / id_, tmp_path / "sockets" / id_):
        folder.mkdir(parents=True)
        pid = await programs.sees(folder)
        assert not lab.node._engine.owns(id_, pid)
    assert lab.node._engine.in_use() == set()


async def test_a_home_whose_path_the_kernel_writes_otherwise_is_found(tmp_path: Path, programs: Programs) -> None:
    sockets = tmp_path / "a home\twith \\134 in it" / "sockets"
    (sockets / "one").mkdir(parents=True)
    pid = await programs.sees(sockets / "one")
    assert folder_of(pid, place_of(sockets)) == "one"
    assert folder_of(pid, place_of(tmp_path)) == ""
