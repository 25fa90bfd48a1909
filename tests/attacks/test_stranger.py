"""Strangers at the port, with a container that asks for memory all the while: nobody else is kept out or held up.

And what they leave behind is bounded: memory, descriptors, disk, log.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.appliance import Appliance, until
from tests.support.attacks import Bystander
from tests.support.constants import with_constants
from tests.support.strangers import STRANGERS, stranger

MIB = 1 << 20
CALLS = 50  # of the bystander's, during each attack
# Of what a stranger may cause: with 2,048 connections of at most 32 KiB each, and threads for some of them.
MOST_MEMORY, MOST_DISK, MOST_LOG = 200 * MIB, 8 * MIB, 256 << 10  # bytes


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    running = Appliance(
        tmp_path_factory.mktemp("strangers") / "home", **with_constants({"appliance.running.doors.HEADER_SECONDS": 3})
    )
    running.launch("sleep", "3600", name="bystander", gpu_memory="512MiB")
    yield running
    running.close()


def held(appliance: Appliance) -> int:
    """How many calls of the bystander's were granted. Whoever is signed in is answered, also during an attack."""
    return int(appliance.named("bystander")["gpus"][0]["used"]) // 4096


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def disk(home: Path) -> int:
    """Bytes. A file that the scheduler has renamed since its folder was listed counts for nothing."""
    found = 0
    for folder, folders, files in os.walk(home):
        for name in folders + files:
            with suppress(FileNotFoundError):
                found += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return found


@pytest.mark.parametrize("name", STRANGERS)
def test_nobody_else_is_kept_out_or_held_up(appliance: Appliance, name: str) -> None:
    parts = appliance.parts()
    log = Path(appliance._log.name)
    before = {part: memory(pid) for part, pid in parts.items()}, disk(appliance.home), log.stat().st_size
    bystander = Bystander(appliance.home / "sockets" / appliance.named("bystander")["id"])
    try:
        with stranger(name, appliance.port) as process:
            until(lambda: appliance.parts() == parts)
            calls = held(appliance)
            until(lambda: held(appliance) >= calls + CALLS)
            assert process.poll() is None, "the attack has ended by itself"
            after = {part: memory(pid) for part, pid in parts.items()}, disk(appliance.home), log.stat().st_size
            descriptors = len(list(Path(f"/proc/{parts['web']}/fd").iterdir()))
    finally:
        took = bystander.stop()
    assert len(took) >= CALLS
    until(lambda: held(appliance) == 0)  # its process has ended, and all is back
    assert appliance.parts() == parts, "neither process has died"
    assert appliance.named("bystander")["state"] == "running"
    assert after[0]["scheduler"] - before[0]["scheduler"] < 16 * MIB
    assert after[0]["web"] - before[0]["web"] < MOST_MEMORY
    assert after[1] - before[1] < MOST_DISK
    assert after[2] - before[2] < MOST_LOG
    assert descriptors < 2500
    assert "Traceback" not in log.read_text()
