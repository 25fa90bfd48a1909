"""PyTorch in Docker containers on a real card: its quota is its card, and two that do not fit take turns."""

import json
from collections.abc import Callable

import pytest

from tests.gpu.conftest import Appliance

pytestmark = [pytest.mark.gpu, pytest.mark.docker, pytest.mark.timeout(300)]
GiB = 1 << 30


def test_pytorch_sees_its_quota_as_the_card_and_gets_its_out_of_memory_error_there(
    appliance: Appliance, record: Callable[[str], None]
) -> None:
    container = appliance.launch("quota", "job_quota.py", gpu_memory="4GiB")
    ended = appliance.state_becomes(container, "exited", "failed")
    log = appliance.logs(container)
    assert ended["state"] == "exited", log
    seen = json.loads(log.strip().splitlines()[-1])
    (gpu,) = ended["gpus"]
    record(f"PyTorch {seen['torch']} under 4 GiB: {json.dumps(seen)}; peak {gpu['peak'] / GiB:.3f} GiB")
    assert seen["total"] == 4 * GiB
    assert seen["free"] < 4 * GiB
    assert seen["goes_on"]
    assert "out of memory" in seen["message"].lower()
    assert 3 * GiB < seen["held"] < 4 * GiB
    assert gpu["peak"] <= 4 * GiB


def test_two_pytorch_containers_that_do_not_fit_together_take_turns(
    appliance: Appliance, record: Callable[[str], None]
) -> None:
    first = appliance.launch("first", "job_turn.py", "3", "10", gpu_memory="4GiB")
    appliance.until(lambda: "block 11" in appliance.logs(first), "the first to hold its memory", 120)
    second = appliance.launch("second", "job_turn.py", "3", "1", gpu_memory="4GiB")
    waiting = appliance.state_becomes(second, "suspended")
    record(f"second is suspended: queue position {waiting['queue_position']}, since {waiting['suspended_since']}")
    assert appliance.get(first)["state"] == "running"
    queue = appliance.client.get("/api/v1/queue/").json()
    record(f"queue: {json.dumps(queue)}")

    ended_first = appliance.state_becomes(first, "exited", "failed")
    ended_second = appliance.state_becomes(second, "exited", "failed")
    for name, container, ended in (("first", first, ended_first), ("second", second, ended_second)):
        log = appliance.logs(container)
        record(f"{name}: {ended['state']}, {ended['started_at']} to {ended['finished_at']}\n{log.rstrip()}")
        assert ended["state"] == "exited", log
        assert "result right" in log
    assert ended_second["finished_at"] > ended_first["finished_at"]
