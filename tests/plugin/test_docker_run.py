"""Plain `docker run` with a volume of ours: a container like every other, from its start to its end."""

import pytest

from tests.plugin.conftest import Lab
from tests.support.eventually import eventually
from tests.support.host import GIB, query
from web.models import AuditEntry, Container

pytestmark = pytest.mark.docker
OUT_OF_MEMORY = 2  # workload's exit code


async def test_a_container_has_its_quota_and_gives_everything_back(lab: Lab) -> None:
    output = await lab.run("workload", "--bytes", "1GiB", "--check", "1MiB", gpu_memory="2GiB")
    assert "done" in output
    (container,) = await query(lambda: list(Container.objects.select_related("owner")))
    container = await lab.until(container, "exited")
    claim = await lab.claim(container)
    assert (claim.quota, container.exit_code, container.image) == (2 * GIB, 0, "gpushare/mounting:latest")
    assert claim.peak > 1 * GIB
    await lab.says(container, "done")  # its end may be reported before its output is copied
    kinds = [event.kind for event in await lab.events(container)]
    assert {"started", "accepted", "ended"} <= set(kinds)
    await lab.nothing_is_held()


async def test_beyond_its_quota_it_is_out_of_memory(lab: Lab) -> None:
    await lab.run("workload", "--bytes", "1GiB", gpu_memory="1GiB", code=OUT_OF_MEMORY)
    (container,) = await query(lambda: list(Container.objects.all()))
    container = await lab.until(container, "failed")
    assert container.exit_code == OUT_OF_MEMORY
    await lab.nothing_is_held()


@pytest.mark.long  # two that are too much for the card: tests/examples/test_compose_volumes.py
async def test_several_wait_for_each_other_on_one_card(lab: Lab) -> None:
    first = await lab.begin("first", "workload", "--bytes", "3GiB", "--hold", "600", gpu_memory="4GiB")
    second = await lab.begin("second", "workload", "--bytes", "3GiB", gpu_memory="4GiB")
    await lab.until(second, "suspended")
    await lab.docker("kill", "first")
    await lab.until(first, "failed")
    second = await lab.until(second, "exited")
    assert second.suspended_seconds > 0
    await lab.nothing_is_held()


async def test_it_is_paused_resumed_changed_and_killed_like_every_other(lab: Lab) -> None:
    made = await lab.begin("mine", "workload", "--bytes", "1GiB", "--hold", "600", gpu_memory="2GiB", priority="5")
    assert (made.priority, made.volume != "", made.command[0]) == (5, True, "workload")
    await lab.says(made, "holding")
    await lab.command("pause", made)
    await lab.until(made, "paused")
    assert "Paused" in await lab.docker("ps", "--filter", "name=mine")
    await lab.command("resume", made)
    await lab.until(made, "running")
    await lab.command("change", made, gpu_memory=3 * GIB)
    assert (await lab.claim(made)).quota == 3 * GIB
    killed = await lab.command("kill", made, grace=0)
    assert killed.outcome == "done", killed.message
    made = await lab.until(made, "killed")
    assert made.exit_code == 137
    await lab.nothing_is_held()
    removed = await lab.command("remove", made)
    assert removed.outcome == "done", removed.message
    assert "mine" not in await lab.docker("ps", "-a")


async def test_one_that_docker_removes_at_its_end_is_reported_with_its_exit_code(lab: Lab) -> None:
    words = ["--rm", "--network=none", *lab.card, *lab.volume(gpu_memory="1GiB")]
    await lab.docker("run", *words, "gpushare/mounting:latest", "sh", "-c", "exit 7", code=7)
    (container,) = await query(lambda: list(Container.objects.all()))
    container = await lab.until(container, "failed")
    assert container.exit_code == 7
    await lab.nothing_is_held()
    assert await lab.docker("volume", "ls", "-q") == ""
    kinds = await query(lambda: list(AuditEntry.objects.filter(actor="docker").values_list("action", flat=True)))
    assert kinds == ["volume", "mount", "volume-removed"]


async def test_one_that_docker_removes_while_no_scheduler_runs_is_reported_with_its_exit_code(lab: Lab) -> None:
    words = ("sh", "-c", "trap 'exit 7' TERM; while true; do sleep 0.1; done")
    made = await lab.begin("mine", *words, more=("--rm",), gpu_memory="1GiB")
    await lab.stop()
    await lab.docker("stop", "mine")
    await eventually(lambda: not lab.dockerd_has("mine"))
    await lab.start()
    made = await lab.until(made, "failed")
    assert (made.exit_code, made.reason) == (7, "")
    await lab.nothing_is_held()
