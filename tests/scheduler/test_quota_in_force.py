"""A scheduler is killed between the commit of a larger quota and the core's answer: the judged one stays in force."""

import pytest

from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from web.models import Claim, Command, Container

HOLD = ("--check", "1MiB", "--hold", "600")
LABEL = "com.nvidia.memory.limit"


async def killed_before_the_answer(host: InProcess, container: Container, size: int) -> Command:
    """The claim has the larger quota, the command is open, and the next scheduler has taken over."""
    await host.stop()
    await query(lambda: Claim.objects.filter(container=container).update(quota=size))
    asked = await query(Command.objects.create, kind="change", container=container, arguments={"gpu_memory": size})
    await host.start()
    return asked


@pytest.mark.parametrize("labelled", [False, True])
async def test_quota_that_the_core_refuses_was_never_in_force(host: InProcess, monkeypatch, labelled: bool) -> None:
    async def labels(image: str, progress: object = None) -> dict[str, str]:
        return {LABEL: "1GiB"} if labelled else {}

    monkeypatch.setattr(host.engine, "image_labels", labels)
    small = await host.launch("workload", "--bytes", "900MiB", *HOLD, gpu_memory=None)
    await host.says(small, "holding")
    large = await host.launch("workload", "--bytes", "3600MiB", *HOLD, gpu_memory=9 * GIB // 2)
    await host.says(large, "holding")

    asked = await killed_before_the_answer(host, small, 3 * GIB)  # each would wait for what the other holds

    answer = await host.answer(asked)
    assert (answer.outcome, answer.code) == ("refused", "unsafe")
    await host.up.store.flush()
    (gpu,) = host.up.gpus.cards
    live = host.up.broker.live_containers[str(small.pk)]
    assert (live.quota[gpu], (await host.claim(small)).quota) == (GIB, GIB)
    assert host.up.broker.state.calm


async def test_quota_that_the_core_accepts_is_in_force_once_it_was_asked(host: InProcess) -> None:
    container = await host.launch("workload", "--bytes", "900MiB", *HOLD, gpu_memory=None)
    await host.says(container, "holding")
    answer = await host.answer(await killed_before_the_answer(host, container, 3 * GIB))
    assert answer.outcome == "done", answer.message
    await host.up.store.flush()
    assert ((await host.get(container)).gpu_memory, (await host.claim(container)).quota) == (3 * GIB, 3 * GIB)


async def test_launch_without_a_quota_has_its_default_in_its_row(host: InProcess) -> None:
    container = await host.launch("sleep", "600", gpu_memory=None)
    assert (await host.get(container)).gpu_memory == GIB
