"""How a container begins: its first process, who its programs are, and what is said where its program cannot run."""

import os
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from scheduler.engines.base import EngineError, Launch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.images import Image
from scheduler.engines.docker.options import with_init
from scheduler.engines.docker.settings import has_init
from tests.engines.conftest import Opener, output_of
from tests.support.dockerd import Dockerd, build_image

pytestmark = pytest.mark.docker
Launcher = Callable[..., Launch]
IMAGE = "gpushare/begins:latest"


@pytest.fixture(scope="module", autouse=True)
def image(tmp_path_factory: pytest.TempPathFactory, dockerd: Dockerd) -> None:
    folder = tmp_path_factory.mktemp("begins")
    (folder / "passwd").write_text("root:x:0:0::/:/bin/sh\nada:x:1815:1852::/:/bin/sh\n")
    (folder / "group").write_text("root:x:0:\nloom:x:1843:\n")
    (folder / "plain").write_text("not for running\n")
    (folder / "strange").write_bytes(b"\x7fNOT\0")
    (folder / "strange").chmod(0o755)
    (folder / "plain").chmod(0o644)
    client = docker.APIClient(dockerd.address, version="auto")
    files = {"etc/passwd": folder / "passwd", "etc/group": folder / "group", "opt/plain": folder / "plain",
             "opt/strange": folder / "strange"}  # fmt: skip
    links = {"opt/gone": "nowhere", "opt/linked": "/opt/plain", "opt/round": "round", "bin/dumb-init": "busybox"}
    build_image(client, IMAGE, files=files, links=links, environment={"PATH": "/opt:/bin"}, also=["WORKDIR /opt"])
    client.close()


async def test_orphan_is_reaped_and_the_exit_code_is_the_programs(
    docker_engine: DockerEngine, a_launch: Launcher
) -> None:
    """A zombie stands there for as long as PID 1 does not ask for it."""
    until_reaped = "while grep -qs '(sleep)' /proc/[0-9]*/stat; do true; done"
    launch = a_launch("sh", "-c", f"sh -c 'sleep 0.1 &'; {until_reaped}; head -c 16 /proc/1/stat; exit 9", image=IMAGE)
    assert (await output_of(docker_engine, launch)).startswith("1 (docker-init)")
    (ended,) = [each for each in await docker_engine.statuses() if each.id == launch.id]
    assert ended.exit_code == 9


@pytest.mark.parametrize(
    ("command", "asked", "first"),
    [
        ("sh", True, "docker-init"),
        ("sh", False, "sh"),
        ("dumb-init", True, "dumb-init"),
        ("/bin/dumb-init", True, "dumb"),
    ],
)
async def test_first_process_is_an_init_unless_that_is_the_command_or_none_is_wanted(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, command: str, asked: bool, first: str
) -> None:
    launch = a_launch(command, "-c", "sleep 60", image=IMAGE, init=asked)
    engine_id = (await docker_engine.launch(launch)).engine_id
    assert docker_api.inspect_container(engine_id)["HostConfig"]["Init"] is (first == "docker-init")
    await docker_engine.kill(engine_id)


@pytest.mark.parametrize(
    ("image", "command", "expected"),
    [
        (Image(entrypoint=("/init",)), ["python"], False),
        (Image(entrypoint=("/usr/bin/tini", "--")), ["python"], False),
        (Image(command=("/lib/systemd/systemd",)), [], False),
        (Image(command=("/lib/systemd/systemd",)), ["python"], True),
        (Image(command=("nginx", "-g", "daemon off;")), [], True),
        (Image(), [], True),
    ],
)
def test_what_an_image_begins_with_is_known(
    a_launch: Launcher, image: Image, command: list[str], expected: bool
) -> None:
    assert with_init(a_launch(*command), image) is expected
    assert with_init(a_launch(*command, init=False), image) is False


def test_docker_without_an_init_of_its_own_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert has_init({"InitCommit": {"ID": ""}})
    assert not has_init({"InitCommit": {"ID": "N/A", "Expected": ""}})
    assert "no docker-init" in caplog.text


@pytest.mark.parametrize(
    ("user", "seen"),
    [("1000", "1000 0"), ("1000:1001", "1000 1001"), ("ada", "1815 1852"), ("ada:loom", "1815 1843"),
     ("0:loom", "0 1843"), ("", "0 0")],
)  # fmt: skip
async def test_programs_are_who_was_asked_for(
    docker_engine: DockerEngine, a_launch: Launcher, user: str, seen: str
) -> None:
    launch = a_launch("sh", "-c", "echo $(id -u) $(id -g)", image=IMAGE, user=user)
    assert await output_of(docker_engine, launch) == f"{seen}\n"


@pytest.mark.parametrize(("user", "named"), [("nobody-here", "user nobody-here"), ("ada:nothing", "group nothing")])
async def test_user_that_the_image_does_not_know_is_refused(
    docker_engine: DockerEngine, a_launch: Launcher, user: str, named: str
) -> None:
    with pytest.raises(EngineError, match=f"has no {named}") as caught:
        await docker_engine.launch(a_launch("true", image=IMAGE, user=user))
    assert (caught.value.code, caught.value.field, caught.value.status) == ("user_not_in_image", "user", 400)


async def test_folder_of_uid_1000_is_written_as_that_user_and_not_as_root(
    open_engine: Opener, a_launch: Launcher, tmp_path: Path
) -> None:
    folder = tmp_path / "ada"
    folder.mkdir(mode=0o755)
    os.chown(folder, 1000, 1000)
    write = ("sh", "-c", "(echo x > /code/a) 2>/dev/null && echo written || echo refused")
    async with open_engine() as engine:
        for user, said in (("1000", "written"), ("", "refused")):
            launch = a_launch(*write, image=IMAGE, user=user, volumes=[f"{folder}:/code:rw"])
            assert (await output_of(engine, launch)).splitlines()[-1] == said


MISSING, NOT_EXECUTABLE = "cannot_start", "cannot_execute"


@pytest.mark.parametrize("init", [True, False])
@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("nope", MISSING, "no program 'nope' in any folder of its PATH"),
        ("/no/such", MISSING, "no program '/no/such' there"),
        ("./gone", MISSING, "no program './gone' there"),
        ("/opt/round", MISSING, "no program '/opt/round' there"),
        ("plain", NOT_EXECUTABLE, "'plain' is in the image, but it is not executable"),
        ("./plain", NOT_EXECUTABLE, "'./plain' is in the image, but it is not executable"),
        ("/opt/linked", NOT_EXECUTABLE, "'/opt/linked' is in the image, but it is not executable"),
        ("/opt", NOT_EXECUTABLE, "'/opt' is a folder in the image, and no program"),
    ],
)
async def test_program_that_cannot_run_is_refused_with_its_cause(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, init: bool, program: str, code: str,
    words: str,
) -> None:  # fmt: skip
    launch = a_launch(program, image=IMAGE, init=init)
    with pytest.raises(EngineError) as caught:
        await docker_engine.launch(launch)
    assert (caught.value.code, caught.value.field, caught.value.status) == (code, "command", 400)
    assert words in str(caught.value)
    assert not docker_api.containers(all=True, filters={"label": f"com.gpushare.container={launch.id}"})


@pytest.mark.parametrize("program", ["true", "/bin/true", "../bin/true", "/proc/self/exe"])
async def test_program_that_is_there_runs(docker_engine: DockerEngine, a_launch: Launcher, program: str) -> None:
    for _ in range(2):  # the second time it is known
        launch = a_launch(program, "true", image=IMAGE, init=False)
        await output_of(docker_engine, launch)
        (ended,) = [each for each in await docker_engine.statuses() if each.id == launch.id]
        assert ended.exit_code is not None


async def test_program_of_a_volume_runs(docker_engine: DockerEngine, a_launch: Launcher, tmp_path: Path) -> None:
    (folder := tmp_path / "code").mkdir()
    for name, mode, said in (("own", 0o755, "mine\n"), ("text", 0o644, "")):
        (folder / name).write_text("#!/bin/sh\necho mine\n")
        (folder / name).chmod(mode)
        launch = a_launch(f"/code/{name}", image=IMAGE, volumes=[f"{folder}:/code:rw"])
        if said:
            assert await output_of(docker_engine, launch) == said
            continue
        with pytest.raises(EngineError, match="is not executable"):
            await docker_engine.launch(launch)
