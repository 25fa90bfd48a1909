"""An image has labels that whoever made it likes, and ours among them: they make nobody's container one of ours.

The scheduler is root: it would write output to wherever such a label says, and hold nobody to a quota who says that it
does so already.
"""

import uuid
from pathlib import Path

import pytest

from tests.plugin.conftest import IMAGE, Lab
from tests.support.eventually import eventually

pytestmark = pytest.mark.docker
THEIRS = "gpushare/theirs:latest"
MIB = 1 << 20


async def make(lab: Lab, **labels: str) -> None:
    """An image with these labels, com.gpushare.…"""
    words = [f"--change=LABEL com.gpushare.{name}={value}" for name, value in labels.items()]
    await lab.docker("create", "--name", "grown", IMAGE, "true")
    await lab.docker("commit", *words, "grown", THEIRS)
    await lab.docker("rm", "grown")


async def test_who_says_to_be_ours_already_is_held_to_the_quota_of_its_volume(lab: Lab) -> None:
    await make(lab, container=str(uuid.uuid4()))
    words = ["-d", "--name", "theirs", "--network=none", *lab.card, *lab.volume(gpu_memory="300MiB")]
    await lab.docker("run", *words, THEIRS, "workload", "--bytes", "100MiB", "--hold", "600")
    held = await lab.running("theirs")
    live = lab.up.broker.live_containers[str(held.pk)]
    await eventually(lambda: live.used(next(iter(live.quota))) >= 100 * MIB)
    await lab.docker("rm", "-f", "theirs")


async def test_what_an_image_says_of_its_output_leads_the_scheduler_nowhere(lab: Lab, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    await make(lab, home=str(lab.home), container=str(uuid.uuid4()), log=str(precious))
    await lab.docker("run", "-d", "--name", "theirs", "--network=none", THEIRS, "sh", "-c", "echo evil; sleep 600")
    await lab.stop()
    await lab.start()
    assert [each.engine_id for each in await lab.up.engine.statuses()] == []
    await lab.docker("rm", "-f", "theirs")
    assert precious.read_text() == "kept"


async def test_labels_without_the_rest_end_nobody(lab: Lab) -> None:
    """The scheduler starts, and starts others."""
    await make(lab, home=str(lab.home))
    await lab.docker("run", "-d", "--name", "theirs", "--network=none", THEIRS, "sleep", "600")
    await lab.stop()
    await lab.start()
    await lab.run("true", gpu_memory="300MiB")
    await lab.docker("rm", "-f", "theirs")
