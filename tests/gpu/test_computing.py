"""The demo's program computes on a real card as on the simulated one, so that what is shown there holds here.

tests/gpu/run -k computing -s
"""

import asyncio
import re
import subprocess
import time
from pathlib import Path

import pytest

from scheduler.card.helper import CardHelper

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
WORKLOAD = Path(__file__).resolve().parent.parent.parent / ".build" / "workload"
SECONDS = 5


def start(*options: str) -> subprocess.Popen[str]:
    words = (WORKLOAD, "--bytes", "64MiB", "--chunks", "1", "--compute", str(SECONDS), *options)
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def output_of(process: subprocess.Popen[str]) -> str:
    output = process.communicate(timeout=120)[0]
    print(output)
    assert process.returncode == 0, output
    assert "every byte is right" in output
    return output


def pace(output: str) -> float:
    """Units a second."""
    (units, seconds) = re.findall(r"computed (\d+) units in all, in ([\d.]+) s", output)[0]
    return int(units) / float(seconds)


def test_a_unit_takes_as_long_as_it_was_asked_to() -> None:
    assert pace(output_of(start("--kernel", "1"))) == pytest.approx(1000, rel=0.1)
    assert pace(output_of(start("--kernel", "10"))) == pytest.approx(100, rel=0.1)


def test_two_at_once_share_the_card() -> None:
    paces = [pace(output_of(process)) for process in [start(), start()]]
    assert 800 < sum(paces) < 1050
    assert paces[0] == pytest.approx(paces[1], rel=0.1)


def test_a_notebook_computes_a_little_of_each_second() -> None:
    output = output_of(start("--every", "50"))
    bursts = [float(took) for took in re.findall(r"computed 50 units in ([\d.]+) ms", output)]
    assert len(bursts) == SECONDS
    assert sorted(bursts)[SECONDS // 2] == pytest.approx(50, rel=0.2)


async def test_a_lock_waits_for_what_was_given_and_nothing_is_computed_meanwhile() -> None:
    helper, process = CardHelper(), start("--kernel", "5", "--ahead", "100")
    try:
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)  # "context on GPU 0"
        await asyncio.sleep(2.5)
        begun = time.monotonic()
        await helper.lock(process.pid, 30)
        drained = time.monotonic() - begun
        print(f"locked within {drained * 1e3:.0f} ms, 500 ms of work ahead")
        assert 0.3 < drained < 0.8
        await asyncio.sleep(2)
        await helper.unlock(process.pid, 30)
        assert pace(await asyncio.to_thread(output_of, process)) < 200 * (SECONDS - 1.5) / SECONDS
    finally:
        process.kill()
        await helper.close()
