"""Holders give way on a real card: an idle notebook to a training, and two trainings to one another, bit for bit."""

import importlib.util
import os
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.gpu import host_image
from tests.gpu.conftest import HERE, VOLUMES, Appliance
from tests.gpu.host_image import PYTHON
from tests.gpu.notebook import client_of, run_cell
from tests.gpu.swapped import GIB, LONG
from tests.gpu.test_swapping import Record

pytestmark = [pytest.mark.gpu, pytest.mark.docker, pytest.mark.timeout(300)]
CARD = 5 * GIB
QUOTA = CARD * 6 // 10
STEPS = int(os.environ.get("GPU_TEST_STEPS", "2000"))
TIMES = 10  # that each training is to give way
# As `manage.py`, but that changing places is worth it after so short a time that a test can wait for it.
UP = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings")
from scheduler.core.moves import preemption
preemption.WORTH = 0.1
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory, image: str) -> Iterator[Appliance]:
    folder = tmp_path_factory.mktemp("way")
    results = Path(os.environ.get("GPU_TEST_RESULTS", str(folder)))
    running = Appliance(
        folder / "home", os.environ.get("GPU_TEST_GPUS", f"nvidia:cap={CARD}"), results / "appliance-giving-way.log",
        GPUSHARE_VOLUME_ROOTS=" ".join([*host_image.ROOTS, str(HERE), str(folder), str(site())]),
        GPUSHARE_SWAP_MEMORY="16GiB", GPUSHARE_HOST_MEMORY="24GiB", GPUSHARE_GIVE_WAY="rotate",
        GPUSHARE_ROTATE_AFTER="0.02", GPUSHARE_IDLE_MINUTES="0.1",
    )  # fmt: skip
    running.program = ["-c", UP]
    running.start()
    yield running
    running.stop()


def site() -> Path:
    """Where this Python has ipykernel."""
    found = importlib.util.find_spec("ipykernel")
    if found is None or found.origin is None:
        pytest.skip("no ipykernel on this machine")
    return Path(found.origin).parent.parent


def events(appliance: Appliance, container: str, kind: str) -> list[str]:
    answer = appliance.client.get(f"/api/v1/allocations/?container={container}&kind={kind}&ordering=at")
    return [event["detail"] for event in answer.json()["results"]]


def training(appliance: Appliance, seed: int) -> str:
    # PyTorch asks for the name of who runs it, and the image has no /etc/passwd.
    env = {"USER": "root"}
    return appliance.launch(f"training-{seed}", "job_train.py", str(seed), str(STEPS), gpu_memory=QUOTA, env=env)


def idle_for(appliance: Appliance, container: str) -> float:
    """Seconds, as the container's page shows them."""
    since = appliance.get(container)["idle_since"]
    return time.time() - datetime.fromisoformat(since).timestamp() if since else 0.0


def weights(text: str) -> str:
    found = re.search(r"weights (\w+)", text)
    assert found is not None, text[-2000:]
    return found[1]


def test_an_idle_notebook_and_trainings_give_way_and_lose_nothing(lab: Appliance, record: Record) -> None:
    alone = {
        seed: subprocess.Popen(
            [PYTHON, str(HERE / "job_train.py"), str(seed), str(STEPS)], stdout=subprocess.PIPE, text=True
        )
        for seed in (1, 2)
    }
    folder = lab.home.parent / "notebook"
    folder.mkdir()
    file = folder / "kernel.json"
    words = ["-m", "ipykernel_launcher", "-f", str(file), "--transport=ipc", f"--ip={folder}/kernel"]
    notebook = lab.launch(
        "notebook", "", command=[PYTHON, *words], gpu_memory=QUOTA,
        volumes=[*VOLUMES, f"{folder}:{folder}", f"{site()}:{site()}:ro"],
        env={"PYTHONPATH": str(site()), "HOME": str(folder)},
    )  # fmt: skip
    with client_of(file) as client:
        run_cell(client, "import torch; held = torch.arange(1 << 29, dtype=torch.int32, device='cuda')")
        lab.until(lambda: idle_for(lab, notebook) > 7, "the notebook to be idle for longer than 0.1 minutes", LONG)
        first = training(lab, 1)
        lab.says(first, "step 0", LONG)
        (why,) = events(lab, notebook, "swapped_out")
        record(f"the notebook: {why}")
        assert why.startswith('It was idle, and gave way to "training-1".')
        begun = time.monotonic()
        parts = "sum(int(part.sum(dtype=torch.int64)) for part in held.split(1 << 24))"
        run_cell(client, f"assert {parts} == (1 << 28) * ((1 << 29) - 1)")
        record(f"its next cell was answered after {time.monotonic() - begun:.1f} s, every byte right")
    lab.until(lambda: bool(events(lab, notebook, "swapped_in")), "its return to be written down")
    record(f"the notebook: {events(lab, notebook, 'swapped_in')[0]}")
    record(f"the training: {events(lab, first, 'swapped_out')[0]}")
    lab.command(notebook, "kill")

    second = training(lab, 2)
    right = {seed: weights(process.communicate(timeout=LONG)[0]) for seed, process in alone.items()}
    for seed, container in ((1, first), (2, second)):
        ended = lab.state_becomes(container, "exited", "failed", "killed", timeout=200)
        moves = events(lab, container, "swapped_out")
        record(f"training {seed}: {ended['state']}, out and in {len(moves)} times: {'; '.join(moves)}")
        assert len(moves) >= TIMES
        assert weights(lab.logs(container)) == right[seed]
    record("the weights of both are to the bit those of trainings that nobody disturbed")
