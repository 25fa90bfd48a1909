"""What an image brings is kept: its search path and preloaded libraries, behind ours; the signal that it stops by."""

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import pytest

from scheduler.engines.base import Launch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.gpu_access import Cdi, NvidiaRuntime
from scheduler.engines.docker.options import SHIM
from scheduler.engines.runtime_environment import RuntimeEnvironment, Simulation, environment
from tests.engines.conftest import Opener, output_of
from tests.support.dockerd import Dockerd, build_image, set_in_image
from tests.support.eventually import PATIENCE, eventually

pytestmark = pytest.mark.docker
Launcher = Callable[..., Launch]
NL = Path("/usr/bin/nl")  # any small dynamic program that prints a file
MAPS = f"/bin/{NL.name} /proc/self/maps"
IMAGE = "gpushare/brings:latest"


def looks_of(engine: DockerEngine, docker_api: docker.APIClient) -> list[dict[str, Any]]:
    """Containers that looks of this home's schedulers have made: other tests share the Docker engine."""
    found: list[dict[str, Any]] = docker_api.containers(
        all=True, filters={"name": f"^/{engine._maker.preloads._prefix}"}
    )
    return found


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, dockerd: Dockerd) -> Iterator[Callable[..., str]]:
    """Builds an image with a program that finds its library by the search path alone, and two libraries to preload."""
    folder = tmp_path_factory.mktemp("brings")
    made = {name: folder / f"lib{name}.so" for name in ("mine", "first", "second")}
    for name, library in made.items():
        source = f"int {name}(void) {{ return 0; }}"
        subprocess.run(
            ["cc", "-shared", "-nostdlib", "-x", "c", "-", "-o", library], input=source, text=True, check=True
        )
    source = "int mine(void); int main(void) { return mine(); }"
    program = folder / "needs-mine"
    command = ["cc", "-x", "c", "-", "-o", program, f"-L{folder}", "-lmine"]
    subprocess.run(command, input=source, text=True, check=True)
    client = docker.APIClient(dockerd.address, version="auto")

    def make(preloaded: str = "", **more: Mapping[str, str] | list[str]) -> str:
        files = {f"opt/{library.name}": library for library in made.values()}
        if preloaded:
            (folder / "preload").write_text(preloaded)
            files["opt/preload"] = folder / "preload"
        build_image(client, IMAGE, [NL, program], files=files, **more)  # type: ignore[arg-type]
        return IMAGE

    yield make
    client.close()


@pytest.mark.parametrize("simulated", [True, False])
async def test_program_that_needs_the_images_search_path_starts(
    open_engine: Opener,
    a_launch: Launcher,
    build: Callable[..., str],
    tmp_path: Path,
    empty_shim: Path,
    simulated: bool,
) -> None:
    simulation = Simulation(tmp_path / "sim", tmp_path / "card" / "state")
    simulation.libraries.mkdir()
    simulation.state.parent.mkdir()
    build(environment={"LD_LIBRARY_PATH": "/nowhere:/opt"})
    async with open_engine(RuntimeEnvironment(empty_shim, simulation if simulated else None)) as engine:
        said = await output_of(engine, a_launch("sh", "-c", "needs-mine; echo $? $LD_LIBRARY_PATH", image=IMAGE))
        code, path = said.split()
        assert code == "0"
        assert path.endswith(":/nowhere:/opt")
        assert path.startswith("/run/gpushare-lib/")
        for given, expected in ((":/opt", "0"), ("", "127")):  # a person's own replaces the image's, as Docker has it
            words = ("sh", "-c", "needs-mine 2>/dev/null; echo $? $LD_LIBRARY_PATH")
            said = await output_of(engine, a_launch(*words, image=IMAGE, environment={"LD_LIBRARY_PATH": given}))
            code, path = said.split()
            assert code == expected
            assert path.startswith("/run/gpushare-lib/")
            assert not path.endswith(":")


@pytest.mark.parametrize("access", [NvidiaRuntime(), Cdi()])
@pytest.mark.parametrize(
    ("given", "seen"), [({}, "/opt"), ({"LD_LIBRARY_PATH": ""}, ""), ({"LD_LIBRARY_PATH": "/x"}, "/x")]
)
def test_where_nvidia_brings_the_libraries_the_search_path_is_the_images_or_the_persons(
    access: NvidiaRuntime | Cdi, given: Mapping[str, str], seen: str
) -> None:
    added, image = access.additions(["GPU-a"]), {"LD_LIBRARY_PATH": "/opt"}
    ours = environment(given, gpus=["GPU-a"], shim=SHIM, libraries=added.libraries, state=added.state, of_image=image)
    assert {**image, **ours}["LD_LIBRARY_PATH"] == seen


async def test_libraries_that_an_images_environment_preloads_are_loaded_after_ours(
    docker_engine: DockerEngine, a_launch: Launcher, build: Callable[..., str]
) -> None:
    build(environment={"LD_PRELOAD": "/opt/libfirst.so /opt/libsecond.so"})
    text = await output_of(docker_engine, a_launch("sh", "-c", f"echo $LD_PRELOAD; {MAPS}", image=IMAGE))
    assert text.splitlines()[0] == f"{SHIM}:/opt/libfirst.so /opt/libsecond.so"
    assert all(library in text for library in (f" {SHIM}", " /opt/libfirst.so", " /opt/libsecond.so"))


@pytest.mark.parametrize("link", ["/opt/preload", "../opt/preload"])
async def test_libraries_that_an_images_file_preloads_are_loaded_after_ours(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, build: Callable[..., str], link: str
) -> None:
    build("/opt/libfirst.so\n/opt/libsecond.so\n", links={"etc/ld.so.preload": link})
    text = await output_of(docker_engine, a_launch("sh", "-c", f"cat /etc/ld.so.preload; env -i {MAPS}", image=IMAGE))
    assert text.splitlines()[:3] == [SHIM, "/opt/libfirst.so", "/opt/libsecond.so"]
    assert all(text.count(library) > 1 for library in (SHIM, "/opt/libfirst.so", "/opt/libsecond.so"))
    assert not looks_of(docker_engine, docker_api)


async def test_what_is_not_a_short_file_is_gone_without(
    docker_engine: DockerEngine, a_launch: Launcher, build: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    build("#" * (65 << 10), links={"etc/ld.so.preload": "/opt/preload"})
    assert await output_of(docker_engine, a_launch("cat", "/etc/ld.so.preload", image=IMAGE)) == f"{SHIM}\n"
    assert "not a short file" in caplog.text


async def test_look_that_was_cut_off_is_taken_away_at_the_next_start(
    open_engine: Opener, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.engines.docker.image_files.Preloads._remove", lambda self, engine_id: None)
    async with open_engine() as engine:
        await output_of(engine, a_launch("true"))
        assert looks_of(engine, docker_api)
    monkeypatch.undo()
    async with open_engine() as engine:
        assert not looks_of(engine, docker_api)


async def test_volume_that_an_image_names_by_a_relative_path_or_with_a_slash_does_not_break_a_launch(
    docker_engine: DockerEngine, a_launch: Launcher, build: Callable[..., str]
) -> None:
    build(also=["VOLUME data /more/ /opt/../x"])
    launch = a_launch("sh", "-c", "echo in > /more/a; cat /more/a", image=IMAGE, volumes=["kept:/more:rw"])
    assert await output_of(docker_engine, launch) == "in\n"


@pytest.mark.parametrize("named", ["INT", "SIGRTMIN+3", "", "99", "33", "SIG", "STOP-IT"])
async def test_grace_begins_with_the_images_stop_signal(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, build: Callable[..., str], named: str
) -> None:
    """37 is SIGRTMIN+3, by which systemd stops. No image but a hostile one names a signal that does not exist."""
    set_in_image(docker_api, build(), StopSignal=named)
    traps = "; ".join(f"trap 'echo {name}; exit 3' {number}" for name, number in (("INT", 2), ("TERM", 15), ("RT", 37)))
    launch = a_launch("sh", "-c", f"{traps}; echo ready; while :; do sleep 0.1; done", image=IMAGE)
    engine_id = (await docker_engine.launch(launch)).engine_id
    await eventually(lambda: launch.log_path.exists() and "ready" in launch.log_path.read_text())
    await docker_engine.kill(engine_id, grace=PATIENCE)
    ended = next(each for each in await docker_engine.statuses() if each.id == launch.id)
    assert ended.exit_code == 3
    said = {"INT": "INT", "SIGRTMIN+3": "RT"}.get(named, "TERM")
    await eventually(lambda: launch.log_path.read_text() == f"ready\n{said}\n")
