"""examples/compose-volumes: started by docker-compose on a real engine; a file beside it adds the simulated card."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
import yaml

from tests.examples.conftest import EXAMPLES
from tests.plugin.conftest import IMAGE, Lab, docker_api, dockerd, lab
from tests.support.host import GIB, query
from web.models import Container

__all__ = ["docker_api", "dockerd", "lab"]
pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(shutil.which("docker-compose") is None, reason="needs docker-compose"),
]
COMPOSE = EXAMPLES / "compose-volumes" / "compose.yaml"


def with_the_card(lab: Lab, folder: Path) -> Path:
    """What NVIDIA's runtime brings on a real host."""
    flags = lab.card
    mounts = [word for flag, word in zip(flags[::2], flags[1::2], strict=True) if flag == "-v"]
    variables = dict(word.split("=", 1) for flag, word in zip(flags[::2], flags[1::2], strict=True) if flag == "-e")
    service = {"volumes": mounts, "environment": variables}
    path = folder / "card.yaml"
    path.write_text(yaml.safe_dump({"services": {"train": service, "notebook": service}}))
    return path


async def test_two_services_share_one_card_under_their_quotas(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    # This docker-compose is of before the specification had no version.
    file.write_text('version: "3.8"\n' + COMPOSE.read_text())
    card = with_the_card(lab, tmp_path)
    card.write_text('version: "3.8"\n' + card.read_text())
    (tmp_path / "code").mkdir()
    env = {
        **os.environ, "DOCKER_HOST": lab.dockerd.address, "IMAGE": IMAGE, "NETWORK": "none", "DRIVER": lab.driver,
        "TRAIN": "workload --bytes 3GiB --hold 600", "NOTEBOOK": "workload --bytes 2GiB --hold 600",
        "TRAIN_MEMORY": "4GiB", "NOTEBOOK_MEMORY": "3GiB", "COMPOSE_PROJECT_NAME": "pair",
    }  # fmt: skip

    async def compose(*words: str) -> None:
        process = await asyncio.create_subprocess_exec(
            "docker-compose", "-f", str(file), "-f", str(card), *words, env=env, cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), 100)
        assert process.returncode == 0, out.decode()

    await compose("up", "-d", "train")
    train = await lab.running("pair_train_1")
    await lab.says(train, "holding")
    await compose("up", "-d", "notebook")
    notebook = await lab.running("pair_notebook_1")
    await lab.until(notebook, "suspended")  # 3 + 2 GiB and two contexts are more than the card's 5
    assert ((await lab.claim(train)).quota, (await lab.claim(notebook)).quota) == (4 * GIB, 3 * GIB)
    assert (train.compute_weight, notebook.priority) == (300, 10)
    await compose("stop", "-t", "0", "train")
    await lab.says(notebook, "holding")
    await compose("down", "-t", "0", "-v")
    await lab.nothing_is_held()
    assert await query(Container.objects.count) == 2
    assert await lab.docker("volume", "ls", "-q") == ""
