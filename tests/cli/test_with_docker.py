"""The command line with a Docker engine: images that are fetched meanwhile, and a quota that no program escapes."""

import base64
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import gpushare
from tests.support.appliance import Appliance, until
from tests.support.dockerd import Dockerd, build_workload, docker_api, dockerd
from tests.support.host import MIB
from tests.support.registry import Registry, serving

__all__ = ["docker_api", "dockerd"]

pytestmark = pytest.mark.docker

LAB = "gpushare/lab:latest"
OUT_OF_MEMORY = 2  # workload's exit code


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docker") / "config.json"


@pytest.fixture
def registry(credentials: Path) -> Iterator[Registry]:
    """With an image that nobody has yet. The password is looked up for each fetch: no restart is needed for it."""
    with serving("ada", "lovelace") as registry:
        known = {registry.host: {"auth": base64.b64encode(b"ada:lovelace").decode()}}
        credentials.write_text(json.dumps({"auths": known}))
        yield registry


@pytest.fixture(scope="module")
def appliance(dockerd: Dockerd, credentials: Path) -> Iterator[Appliance]:
    build_workload(dockerd.address, LAB, labels={"com.nvidia.memory.limit": "256MiB"})
    running = Appliance(
        credentials.parent / "var",
        gpus="sim:1x5GiB",
        GPUSHARE_ENGINE="docker",
        GPUSHARE_DOCKER_HOST=dockerd.address,
        GPUSHARE_REGISTRY_CONFIG=str(credentials),
    )
    yield running
    running.close()


def test_a_missing_image_is_fetched_and_the_terminal_says_how_far_it_is(appliance, registry, start):
    registry.open.clear()  # half of the layer, until somebody has seen that it is on its way
    process = start("run", "--name", "fetcher", f"{registry.host}/private:1.0", environ=appliance.environ)
    try:
        while not re.search(r"^gpushare: Fetching .*/private:1\.0: [0-9.]+ of [0-9.]+ MiB$", process.stderr.readline()):
            assert process.poll() is None
        (container,) = appliance.containers(name="fetcher")
        assert container["state"] == "created"
        (command,) = [each for each in appliance.api("GET", "commands/")["results"] if not each["done"]]
        assert (command["kind"], command["container"]) == ("launch", container["id"])
        assert command["message"].startswith(f"Fetching {registry.host}/private:1.0: ")
    finally:
        registry.open.set()
    assert (process.stdout.read(), process.wait(60)) == ("fetched\n", 0)
    assert appliance.named("fetcher")["gpus"][0]["quota"] == 3 << 30  # the label of an image that was not here


def test_ctrl_c_calls_a_launch_off_while_its_image_is_fetched(appliance, registry, start):
    registry.open.clear()
    process = start("run", "--name", "early", f"{registry.host}/private", environ=appliance.environ)
    try:
        while "Fetching" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 125
    finally:
        registry.open.set()
    assert "killed before it had started" in process.stderr.read()
    assert appliance.containers(name="early") == []


def test_the_quota_holds_in_every_program_inside_and_for_all_of_them_together(appliance, docker_api):
    shell = ["sh", "-c", "echo $GPUSHARE_MEMORY_LIMIT $GPUSHARE_MEMORY_FRACTION; sleep 600"]
    made = appliance.launch(*shell, image=LAB, name="confined")
    assert made["gpus"][0]["quota"] == 256 * MIB  # the image's label
    until(lambda: gpushare("logs", "confined", environ=appliance.environ).stdout == f"{256 * MIB} 0.050000\n")

    def inside(*command: str) -> int:
        """Its exit code, in a `docker exec`."""
        running = docker_api.exec_create(made["engine_id"], list(command))
        docker_api.exec_start(running["Id"])
        return int(docker_api.exec_inspect(running["Id"])["ExitCode"])

    card = "LD_LIBRARY_PATH=$LD_LIBRARY_PATH GPUSHARE_SIM=$GPUSHARE_SIM"  # without these there is no simulated card
    ways = {
        "exec": ("workload",),
        "shell": ("sh", "-c", 'exec workload "$@"', "sh"),
        "without our variable": ("env", "-u", "LD_PRELOAD", "workload"),
        "without any variable": ("sh", "-c", f'exec env -i {card} /bin/workload "$@"', "sh"),
        "shell in a shell": ("sh", "-c", 'unset LD_PRELOAD; sh -c \'exec workload "$@"\' sh "$@"', "sh"),
    }
    codes = {way: (inside(*start, "--bytes", "128MiB"), inside(*start, "--bytes", "256MiB"))
             for way, start in ways.items()}  # fmt: skip
    assert codes == dict.fromkeys(ways, (0, OUT_OF_MEMORY))
    holder = docker_api.exec_create(made["engine_id"], ["workload", "--bytes", "128MiB", "--hold", "600"])
    docker_api.exec_start(holder["Id"], detach=True)
    until(lambda: appliance.named("confined")["gpus"][0]["used"] > 128 * MIB)
    assert inside("workload", "--bytes", "128MiB") == OUT_OF_MEMORY
