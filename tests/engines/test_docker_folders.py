"""Folders of the host in containers: what was looked at is what is mounted, and nothing of the mounting stays."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.engines.base import EngineError, Launch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.launching import folders
from tests.engines.conftest import Opener, output_of

pytestmark = pytest.mark.docker
Launcher = Callable[..., Launch]


def as_root(*words: str | Path) -> None:
    subprocess.run(words, check=True)


def mounted_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [place for line in lines if (place := line.split()[4]).startswith(str(folder))]


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    yield
    assert mounted_below(tmp_path / "mounts") == []
    assert list((tmp_path / "mounts").iterdir()) == []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("mine\n")
    return tmp_path / "data"


async def test_a_folder_that_is_exchanged_for_a_link_after_the_look_is_mounted_as_it_was_looked_at(
    docker_engine: DockerEngine, a_launch: Launcher, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("root's\n")
    take = docker_engine._maker._take_volumes

    def exchange(*arguments: Any) -> None:
        take(*arguments)
        data.rename(tmp_path / "away")
        data.symlink_to(tmp_path / "secret")

    monkeypatch.setattr(docker_engine._maker, "_take_volumes", exchange)
    assert await output_of(docker_engine, a_launch("cat", "/d/file", volumes=[f"{data}:/d"])) == "mine\n"


@pytest.mark.parametrize(
    ("root", "path"), [("", "link"), ("", "link/deeper"), ("{user}", "ada"), ("{user}", "ada/deeper")]
)
async def test_no_link_is_followed_below_a_root_nor_to_a_users_own(
    open_engine: Opener, a_launch: Launcher, data: Path, tmp_path: Path, root: str, path: str
) -> None:
    (data / "deeper").mkdir()
    for name in ("link", "ada"):
        (tmp_path / name).symlink_to(data)
    async with open_engine(volume_roots=(tmp_path / root,)) as engine:
        with pytest.raises(EngineError, match="is a link and may lead outside the folders") as refused:
            await engine.launch(a_launch("true", volumes=[f"{tmp_path}/{path}:/d"]))
    assert (refused.value.code, refused.value.field) == ("bad_volume", "volumes")


async def test_a_root_that_is_a_link_is_an_admins_own_word(
    open_engine: Opener, a_launch: Launcher, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(data)
    async with open_engine(volume_roots=(tmp_path / "link",)) as engine:
        assert await output_of(engine, a_launch("cat", "/d/file", volumes=[f"{tmp_path}/link:/d"])) == "mine\n"


async def test_a_file_is_mounted_as_one_and_a_device_or_pipe_is_not(
    docker_engine: DockerEngine, a_launch: Launcher, data: Path
) -> None:
    assert await output_of(docker_engine, a_launch("cat", "/f", volumes=[f"{data}/file:/f:ro"])) == "mine\n"
    os.mkfifo(data / "pipe")
    with pytest.raises(EngineError, match="neither a folder nor a file"):
        await docker_engine.launch(a_launch("true", volumes=[f"{data}/pipe:/p"]))


async def test_what_is_mounted_below_a_folder_comes_along_and_stays_on_the_host(
    docker_engine: DockerEngine, a_launch: Launcher, data: Path
) -> None:
    (data / "below").mkdir()
    as_root("mount", "-t", "tmpfs", "tmpfs", data / "below")
    as_root("mount", "--make-shared", data / "below")
    try:
        (data / "below" / "file").write_text("below\n")
        assert await output_of(docker_engine, a_launch("cat", "/d/below/file", volumes=[f"{data}:/d"])) == "below\n"
        assert mounted_below(data) == [str(data / "below")]
    finally:
        as_root("umount", data / "below")


async def test_a_container_keeps_its_folders_when_the_scheduler_goes(
    open_engine: Opener, a_launch: Launcher, data: Path
) -> None:
    script = "until [ -e /d/go ]; do sleep 0.05; done; cat /d/file; echo written > /d/made"
    async with open_engine() as engine:
        launch = a_launch("sh", "-c", script, volumes=[f"{data}:/d"])
        status = await engine.launch(launch)
    async with open_engine() as engine:
        (data / "go").touch()
        async for seen in engine.changes():
            if seen.id == launch.id and seen.exit_code is not None:
                break
        assert seen.exit_code == 0
        await engine.remove(status.engine_id)
    assert (data / "made").read_text() == "written\n"


async def test_what_a_killed_scheduler_has_left_mounted_is_taken_away(
    open_engine: Opener, a_launch: Launcher, data: Path, tmp_path: Path
) -> None:
    left = tmp_path / "mounts" / a_launch().id
    left.mkdir(parents=True)
    for _ in range(2):
        as_root("mount", "-t", "tmpfs", "tmpfs", left)
    (left / "0").mkdir()
    as_root("mount", "--bind", data, left / "0")
    async with open_engine():
        assert mounted_below(tmp_path / "mounts") == []
    assert (data / "file").read_text() == "mine\n"


async def test_where_nothing_may_be_mounted_folders_are_refused_and_the_start_says_so(
    open_engine: Opener,
    a_launch: Launcher,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused(*_: object) -> int:
        ctypes.set_errno(1)
        return -1

    monkeypatch.setattr(folders._libc, "mount", refused)
    async with open_engine() as engine:
        assert "may not mount anything" in caplog.text
        with pytest.raises(EngineError, match="only named volumes"):
            await engine.launch(a_launch("true", volumes=[f"{data}:/d"]))
