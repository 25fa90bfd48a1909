"""What a container is inside: confined, limited, with its GPUs and no others, and never without the shim."""

from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from scheduler.engines.base import EngineError, Launch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.options import LABEL_TTY, SHIM
from scheduler.engines.runtime_environment import RuntimeEnvironment, Simulation
from tests.engines.conftest import Opener, output_of
from tests.support.dockerd import Dockerd, build_image
from tests.support.eventually import eventually

pytestmark = pytest.mark.docker
Launcher = Callable[..., Launch]
NL = Path("/usr/bin/nl")  # any small dynamic program that prints a file


@pytest.fixture(scope="module")
def stubborn_image(dockerd: Dockerd) -> str:
    """An image that brings its own settings for all that is ours, and a dynamic program."""
    client = docker.APIClient(dockerd.address, version="auto")
    build_image(
        client,
        "gpushare/stubborn:latest",
        [NL],
        labels={"com.nvidia.memory.limit": "2GiB", LABEL_TTY: ""},
        environment={
            "LD_PRELOAD": "/tmp/evil.so",
            "LD_AUDIT": "/tmp/evil.so",
            "LD_LIBRARY_PATH": "/tmp/evil",
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "all",
            "NVIDIA_REQUIRE_CUDA": "cuda>=12",
            "CUDA_VISIBLE_DEVICES": "0,1,2,3",
            "CUDA_MPS_PIPE_DIRECTORY": "/tmp",
            "GPUSHARE_SOCKET": "/tmp/mine",
            "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=1",
            "LD_BIND_NOW": "1",
            "LD_DEBUG": "all",
            "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
            "KEPT": "yes",
        },
        also=["HEALTHCHECK --interval=1s CMD touch /tmp/looked"],
    )
    client.close()
    return "gpushare/stubborn:latest"


async def test_environment_of_image_and_user_cannot_undo_the_assignment(
    open_engine: Opener, a_launch: Launcher, stubborn_image: str, tmp_path: Path, empty_shim: Path
) -> None:
    simulation = Simulation(tmp_path / "sim", tmp_path / "card" / "state")
    simulation.libraries.mkdir()
    simulation.state.parent.mkdir()
    given = {"GPUSHARE_MEMORY_LIMIT": "1024", "MINE": "too", "LD_PRELOAD": "/tmp/evil.so"}
    launch = a_launch("env", image=stubborn_image, gpus=["GPU-a", "GPU-b"], environment=given)
    async with open_engine(RuntimeEnvironment(empty_shim, simulation)) as engine:
        text = await output_of(engine, launch)
    seen = dict(line.split("=", 1) for line in text.splitlines())
    for ordinary in ("HOSTNAME", "HOME", "PATH", "SHLVL", "PWD"):
        seen.pop(ordinary, None)
    assert seen == {
        "LD_PRELOAD": f"{SHIM}:/tmp/evil.so",  # no way round: ours is first, and stands in /etc/ld.so.preload as well
        "LD_LIBRARY_PATH": "/run/gpushare-lib/sim:/tmp/evil",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "NVIDIA_REQUIRE_CUDA": "cuda>=12",
        "GPUSHARE_MEMORY_LIMIT": "1024",
        "GPUSHARE_SIM": "/run/gpushare-card/state",
        "KEPT": "yes",
        "MINE": "too",
    }


async def test_check_of_an_images_own_does_not_run_and_its_labels_do_not_pass_for_ours(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, stubborn_image: str
) -> None:
    engine_id = (await docker_engine.launch(a_launch("sleep", "600", image=stubborn_image))).engine_id
    found = docker_api.inspect_container(engine_id)
    assert "Health" not in found["State"]
    assert found["Config"]["Labels"][LABEL_TTY] == "no"


async def test_labels_of_an_image_are_reported(docker_engine: DockerEngine, stubborn_image: str) -> None:
    assert (await docker_engine.image_labels(stubborn_image))["com.nvidia.memory.limit"] == "2GiB"


async def test_shim_is_in_the_program_in_shells_in_exec_and_in_a_cleared_environment(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, stubborn_image: str
) -> None:
    look = f"/bin/{NL.name} /proc/self/maps"
    launch = a_launch("/bin/sh", "-c", f"env -i {look}; sleep 600", image=stubborn_image)
    engine_id = (await docker_engine.launch(launch)).engine_id

    def inside(*command: str) -> str:
        made = docker_api.exec_create(engine_id, list(command))
        return bytes(docker_api.exec_start(made["Id"])).decode()

    assert SHIM in inside(f"/bin/{NL.name}", "/proc/self/maps")
    assert SHIM in inside("/bin/sh", "-c", f"unset LD_PRELOAD; /bin/sh -c '{look}'")
    assert SHIM in inside("env", "-i", *look.split())
    await eventually(lambda: launch.log_path.exists() and SHIM in launch.log_path.read_text())
    await docker_engine.kill(engine_id)


async def test_static_program_is_left_in_peace(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    # busybox is linked statically: no loader, so neither LD_PRELOAD nor the file does anything, and nothing is said.
    assert await output_of(docker_engine, a_launch("/bin/sh", "-c", "echo fine")) == "fine\n"


async def test_no_capability_no_new_privilege_and_a_seccomp_filter(
    docker_engine: DockerEngine, a_launch: Launcher
) -> None:
    text = await output_of(docker_engine, a_launch("cat", "/proc/self/status"))
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


async def test_the_seccomp_profile_is_no_wider_than_dockers_own(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    """Docker's refuses a user namespace of one's own to whoever has no capability: the way to most of the kernel."""
    names = {"name=seccomp,profile=default", "name=seccomp,profile=builtin"}  # before and since Docker 23
    assert names & set(docker_api.info()["SecurityOptions"])
    launch = a_launch("/bin/sh", "-c", "busybox unshare -U true; sleep 600")
    engine_id = (await docker_engine.launch(launch)).engine_id
    assert docker_api.inspect_container(engine_id)["HostConfig"]["SecurityOpt"] == ["no-new-privileges:true"]
    await eventually(lambda: "Operation not permitted" in docker_api.logs(engine_id).decode())


async def test_limits_and_labels_are_set(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    launch = a_launch("sleep", "600", memory=64 << 20, cpus=0.5)
    found = docker_api.inspect_container((await docker_engine.launch(launch)).engine_id)
    host = found["HostConfig"]
    assert (host["Memory"], host["NanoCpus"], host["PidsLimit"]) == (64 << 20, 500_000_000, 4096)
    assert host["MemorySwap"] == host["Memory"]
    assert (host["Privileged"], host["PidMode"], host["UTSMode"]) == (False, "", "")
    labels = found["Config"]["Labels"]
    assert (labels["com.gpushare.container"], labels["com.gpushare.owner"]) == (launch.id, "ada")
    asked_nothing = docker_api.inspect_container((await docker_engine.launch(a_launch("sleep", "600"))).engine_id)
    assert asked_nothing["HostConfig"]["Memory"] > 64 << 20
    assert asked_nothing["HostConfig"]["NanoCpus"] > 0


async def test_command_begins_in_the_folder_asked_for(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    for asked, given in (("/tmp", "/tmp"), ("/made/for/it", "/made/for/it"), ("", "/")):
        launch = a_launch("/bin/sh", "-c", "pwd", working_dir=asked)
        assert await output_of(docker_engine, launch) == f"{given}\n"


@pytest.mark.parametrize("place", ["/bin/sh", "/bin/sh/below", "/run/gpushare/below"])
async def test_place_where_no_command_can_begin_is_refused(
    docker_engine: DockerEngine, a_launch: Launcher, place: str
) -> None:
    with pytest.raises(EngineError, match="cannot begin in") as caught:
        await docker_engine.launch(a_launch("true", working_dir=place))
    assert (caught.value.code, caught.value.field, caught.value.status) == ("cannot_begin", "working_dir", 400)
    assert await docker_engine.statuses() == []


async def test_shared_memory_is_as_large_as_asked_for(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    for asked, given in ((96 << 20, 96 << 20), (None, 1 << 30)):
        mounts = await output_of(docker_engine, a_launch("cat", "/proc/mounts", shm_size=asked))
        (line,) = [line for line in mounts.splitlines() if " /dev/shm " in line]
        assert f"size={given >> 10}k" in line


@pytest.mark.parametrize(("memory", "shm_size"), [(64 << 20, 65 << 20), (None, 1 << 50)])
async def test_shared_memory_beyond_the_containers_own_is_refused(
    docker_engine: DockerEngine, a_launch: Launcher, memory: int | None, shm_size: int
) -> None:
    with pytest.raises(EngineError, match="more than all of its host memory, which is") as caught:
        await docker_engine.launch(a_launch("true", memory=memory, shm_size=shm_size))
    assert (caught.value.code, caught.value.field, caught.value.status) == ("shm_too_large", "shm_size", 400)


async def test_what_is_ours_cannot_be_written(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    script = f"for f in {SHIM} /etc/ld.so.preload /run/gpushare/x; do echo x > $f && echo WROTE $f; done"
    text = await output_of(docker_engine, a_launch("/bin/sh", "-c", script))
    assert text.count("Read-only file system") == 3
    assert "WROTE" not in text


# ---- volumes --------------------------------------------------------------------------------------------------------


async def test_volume_is_read_only_when_asked(docker_engine: DockerEngine, a_launch: Launcher, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("hello")
    volumes = [f"{tmp_path}/data:/ro:ro", f"{tmp_path}/data:/rw"]
    text = await output_of(
        docker_engine, a_launch("/bin/sh", "-c", "cat /ro/file; echo x > /ro/y; echo x > /rw/y", volumes=volumes)
    )
    assert "hello" in text
    assert "/ro/y: Read-only" in text
    assert (tmp_path / "data" / "y").read_text() == "x\n"


async def test_everybodys_own_folder_is_theirs_alone(open_engine: Opener, a_launch: Launcher, tmp_path: Path) -> None:
    for name in ("ada", "bob"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"of {name}\n")
    (tmp_path / "ada" / "link").symlink_to(tmp_path / "bob")
    async with open_engine(volume_roots=(tmp_path / "{user}",)) as engine:
        assert await output_of(engine, a_launch("cat", "/d/file", volumes=[f"{tmp_path}/ada:/d"])) == "of ada\n"
        for anothers in ("bob", "ada/link"):
            with pytest.raises(EngineError, match="outside the folders"):
                await engine.launch(a_launch("true", volumes=[f"{tmp_path}/{anothers}:/d"]))


async def test_named_volume_keeps_what_was_written(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    await output_of(docker_engine, a_launch("/bin/sh", "-c", "echo kept > /v/file", volumes=["ada-data:/v"]))
    assert await output_of(docker_engine, a_launch("cat", "/v/file", volumes=["ada-data:/v:ro"])) == "kept\n"


async def test_named_volume_is_its_makers_alone_unless_it_was_made_for_everybody(
    docker_engine: DockerEngine, a_launch: Launcher, docker_api: docker.APIClient
) -> None:
    docker_api.create_volume("another-program")  # of this host's, such as a database
    docker_api.create_volume("datasets", labels={"com.gpushare.shared": ""})
    assert await output_of(docker_engine, a_launch("/bin/sh", "-c", "echo made", volumes=["notes:/v"])) == "made\n"
    for name, owner in (("notes", "bob"), ("another-program", "ada")):
        with pytest.raises(EngineError, match="somebody else's") as refused:
            await docker_engine.launch(a_launch("true", volumes=[f"{name}:/v"], owner=owner))
        assert (refused.value.code, refused.value.status, refused.value.field) == ("forbidden", 403, "volumes")
    for name, owner in (("notes", "ada"), ("datasets", "ada"), ("datasets", "bob")):
        assert (
            await output_of(docker_engine, a_launch("/bin/sh", "-c", "echo in", volumes=[f"{name}:/v"], owner=owner))
            == "in\n"
        )


@pytest.mark.parametrize(
    ("volume", "code", "says"),
    [
        ("/etc:/host", "bad_volume", "outside the folders"),
        ("{tmp}/link:/host", "bad_volume", "outside the folders"),
        ("{tmp}/../..:/host", "bad_volume", "outside the folders"),
        ("{tmp}/missing:/host", "volume_missing", "does not exist"),
        ("{tmp}:/etc", "bad_volume", "would cover"),
        ("{tmp}:/", "bad_volume", "target of a volume"),
        ("{tmp}:/usr", "bad_volume", "would cover /usr/lib"),
        ("{tmp}:/proc/1", "bad_volume", "would cover /proc"),
        ("{tmp}:/run/gpushare", "bad_volume", "would cover"),
        ("{tmp}:/run/gpushare-lib/libgpushare.so", "bad_volume", "would cover"),
        ("{tmp}:/opt/../etc", "bad_volume", "would cover"),
        ("{tmp}:data", "bad_volume", "target of a volume"),
        ("{tmp}:/data:shared", "bad_volume", "source:target"),
        (":/data", "bad_volume", "source:target"),
    ],
)
async def test_volume_that_reaches_too_far_is_refused(
    docker_engine: DockerEngine, a_launch: Launcher, tmp_path: Path, volume: str, code: str, says: str
) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(EngineError, match=says) as caught:
        await docker_engine.launch(a_launch("true", volumes=[volume.format(tmp=tmp_path)]))
    assert (caught.value.code, caught.value.field, caught.value.status) == (code, "volumes", 400)
    assert await docker_engine.statuses() == []
