"""What a container uses of the host, by the files of either version of control groups."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.engines.base import Use
from scheduler.engines.docker.groups import ROOT, Groups, files_of, use
from tests.engines.conftest import Opener

STAT = "anon 4096\nactive_file 7\ninactive_file 1000\ntotal_inactive_file 3000\nslab 1\n"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("_in_", "@").replace("_", ".", 1).replace("@", "_in_")).write_text(text)


def test_of_version_2_all_is_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "system.slice/docker-1.scope", cpu_stat="usage_usec 2500000\nuser_usec 7\n",
          memory_current="9000\n", memory_stat=STAT)  # fmt: skip
    assert use(files_of("0::/system.slice/docker-1.scope\n", tmp_path)) == Use(processor=2.5, memory=8000)


def test_of_version_1_each_controller_has_its_own(tmp_path: Path) -> None:
    write(tmp_path / "cpuacct/docker/1", cpuacct_usage="1500000000\n")
    write(tmp_path / "memory/docker/1", memory_usage_in_bytes="9000\n", memory_stat=STAT)
    text = "9:name=systemd:/docker/1\n4:memory:/docker/1\n2:cpu,cpuacct:/docker/1\n0::/\n"
    assert use(files_of(text, tmp_path)) == Use(processor=1.5, memory=6000)


def test_whom_the_kernel_does_not_tell_of_is_left_out(tmp_path: Path) -> None:
    groups = Groups(tmp_path)  # nothing is mounted there
    assert groups.use({"gone": 2**22 + 1, "unreadable": os.getpid()}) == {}


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """A process in a control group whose name is no text, as any user may have one of their own."""
    group = (ROOT / "pids" if (ROOT / "pids").exists() else ROOT) / os.fsdecode(b"gpushare-\xff")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control groups can be made here: {error.strerror}")
    try:
        with subprocess.Popen(["sleep", "600"]) as process:
            (group / "cgroup.procs").write_text(str(process.pid))
            assert b"\xff" in Path(f"/proc/{process.pid}/cgroup").read_bytes()
            yield process.pid
            process.kill()
    finally:
        group.rmdir()


@pytest.mark.docker
async def test_a_process_in_a_group_of_any_name_is_looked_at(open_engine: Opener, elsewhere: int) -> None:
    async with open_engine() as engine:
        assert not engine.owns("0" * 64, elsewhere)
        assert engine.uses(["0" * 64]) == {}
