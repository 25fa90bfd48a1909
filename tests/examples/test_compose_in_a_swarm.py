"""examples/compose-volumes again, the same file: deployed to a real Swarm (without one: test_compose_volumes.py)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.examples.conftest import EXAMPLES
from tests.support.appliance import ROOT, Appliance, until
from tests.support.swarm_lab import Lab, why_no_lab
from tests.swarm.appliance import IMAGE, in_a_swarm, knows_the_plugin
from tests.swarm.test_launches import shown

pytestmark = [
    pytest.mark.long,  # the file: test_compose_volumes.py; on a Swarm: tests/swarm/test_launches.py
    pytest.mark.docker,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("docker") is None, reason="needs Docker's client"),
]
COMPOSE = EXAMPLES / "compose-volumes" / "compose.yaml"
GIB = 1 << 30
DECLARED = 16_384 + 8_192  # MiB: what the file reserves, to the last one


@pytest.fixture
def both() -> Iterator[tuple[Appliance, Lab]]:
    if why_not := why_no_lab():
        pytest.skip(why_not)
    people = {"GPUSHARE_ENGINE": "docker", "GPUSHARE_PLUGIN_PEOPLE": "admin"}
    with in_a_swarm({"gpu0_mib": DECLARED}, gpus="sim:1x5GiB", **people) as (appliance, swarm):
        until(lambda: knows_the_plugin(swarm))
        yield appliance, swarm


def with_the_card(appliance: Appliance, folder: Path) -> Path:
    """What NVIDIA's runtime brings on a real host; and the host's network: this machine has no other for services."""
    (state,) = (appliance.home / "card").glob("*")
    service = {
        "volumes": [f"{ROOT}/.build/sim:/run/gpushare-lib/sim:ro", f"{state.parent}:/run/gpushare-card"],
        "environment": {
            "LD_LIBRARY_PATH": "/run/gpushare-lib/sim",
            "GPUSHARE_SIM": f"/run/gpushare-card/{state.name}",
        },
    }
    path = folder / "card.yaml"
    networks = {"default": {"external": True, "name": "host"}}
    services = {"train": service, "notebook": service}
    path.write_text(yaml.safe_dump({"version": "3.8", "services": services, "networks": networks}))
    return path


def test_the_same_file_on_a_swarm(both: tuple[Appliance, Lab], tmp_path: Path) -> None:
    appliance, swarm = both
    file = tmp_path / "compose.yaml"
    file.write_text('version: "3.8"\n' + COMPOSE.read_text())  # clients of before 26 ask for one
    (tmp_path / "code").mkdir()
    env = {
        **os.environ, "DOCKER_HOST": swarm.members[0].address, "IMAGE": IMAGE,
        "TRAIN": "workload --bytes 3GiB --hold 600", "NOTEBOOK": "workload --bytes 2GiB --hold 600",
        "TRAIN_MEMORY": "4GiB", "NOTEBOOK_MEMORY": "3GiB",
    }  # fmt: skip
    card = with_the_card(appliance, tmp_path)

    def docker(*words: str) -> str:
        done = subprocess.run(["docker", *words], env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def running(service: str) -> dict[str, Any] | None:
        found = [each for each in appliance.containers() if each["name"].startswith(f"pair_{service}.1.")]
        return next((each for each in found if each["gpus"] and each["started_at"]), None)

    docker("stack", "deploy", "--resolve-image", "never", "-c", str(file), "-c", str(card), "pair")
    train, notebook = (until(lambda name=name: running(name)) for name in ("train", "notebook"))
    quotas = [each["gpus"][0]["quota"] for each in (train, notebook)]
    assert (quotas, train["compute_weight"], notebook["priority"]) == ([4 * GIB, 3 * GIB], 300, 10)
    # 3 + 2 GiB and two contexts are more than the card's 5: whoever asks later is suspended.
    waits = until(lambda: next((each for each in appliance.containers() if each["state"] == "suspended"), None))
    other = notebook if waits["id"] == train["id"] else train
    docker("service", "rm", other["name"].partition(".")[0])
    until(lambda: shown(appliance, other["id"])["finished_at"])
    need = 3 * GIB if waits["id"] == train["id"] else 2 * GIB
    until(lambda: shown(appliance, waits["id"])["gpus"][0]["used"] >= need)
    docker("stack", "rm", "pair")
    until(lambda: not appliance.containers())
    ends = [shown(appliance, each["id"]) for each in (train, notebook)]
    assert all(end["finished_at"] and end["gpus"][0]["peak"] >= 2 * GIB for end in ends)
