"""One volume in several containers: each is a container of its own, with the whole of what the volume says."""

import asyncio

import pytest

from tests.plugin.conftest import IMAGE, Lab
from tests.support.host import GIB, query
from web.models import Container

pytestmark = pytest.mark.docker
# Until it is asked to: on a busy machine the first would have ended before the last is there.
GO_ON = "while [ $on ]; do sleep 0.1; done"


async def test_each_is_itself_also_where_all_start_at_once(lab: Lab) -> None:
    await lab.docker("volume", "create", "-d", lab.driver, "-o", "gpu_memory=1GiB", "shared")
    names = [f"c{number}" for number in range(6)]
    for number, name in enumerate(names):
        words = ["create", "--name", name, "--network=none", *lab.card, *lab.volume("shared")]
        await lab.docker(
            *words, IMAGE, "sh", "-c", f"trap 'on=' USR1; on=1; workload --bytes 100MiB; {GO_ON}; exit {number}"
        )
    await asyncio.gather(*(lab.docker("start", name) for name in names))
    for number, name in enumerate(names):
        made = await lab.running(name)
        assert (made.volume, made.image, made.command[-1].split()[-1]) == ("shared", IMAGE, str(number))
        assert (await lab.claim(made)).quota == GIB
    for number, name in enumerate(names):
        await lab.docker("kill", "-s", "USR1", name)
        await lab.docker("wait", name)
        (made,) = await query(lambda name=name: list(Container.objects.filter(name=name)))
        made = await lab.until(made, "failed" if number else "exited")
        assert made.exit_code == number
        engine_id = (await lab.docker("inspect", "-f", "{{.Id}}", name)).strip()
        assert made.engine_id == engine_id
    await lab.nothing_is_held()


async def test_no_process_is_taken_for_another_containers(lab: Lab) -> None:
    """Both hold memory, under one volume; each is charged what it has itself."""
    await lab.docker("volume", "create", "-d", lab.driver, "-o", "gpu_memory=2GiB", "shared")
    sizes = {"small": 256, "large": 1024}
    for name, size in sizes.items():
        words = ["create", "--name", name, "--network=none", *lab.card, *lab.volume("shared")]
        await lab.docker(*words, IMAGE, "workload", "--bytes", f"{size}MiB", "--hold", "600")
    await asyncio.gather(*(lab.docker("start", name) for name in sizes))
    for name, size in sizes.items():
        made = await lab.running(name)
        await lab.says(made, "holding")
        live = lab.up.broker.live_containers[str(made.pk)]
        assert size << 20 <= live.used(next(iter(live.quota))) < (size + 200) << 20, name


async def test_a_container_with_a_restart_policy_is_itself_at_every_run(lab: Lab) -> None:
    words = [
        "-d", "--name", "loop", "--restart=on-failure:3", "--network=none", *lab.card, *lab.volume(gpu_memory="3GiB"),
    ]  # fmt: skip
    await lab.docker("run", *words, IMAGE, "sh", "-c", "workload --bytes 100MiB; exit 5")
    while await query(Container.objects.count) < 4:
        await lab.docker("wait", "loop")  # returns at the end of any run
    await lab.docker("wait", "loop")
    await lab.nothing_is_held()
    runs = await query(lambda: list(Container.objects.order_by("created_at")))
    assert len(runs) == 4
    assert [run.exit_code for run in runs][-1] == 5
    assert {run.name for run in runs} == {"loop"}


async def test_of_one_that_is_started_again_and_again_nobody_looks_at_the_runs_that_have_ended(lab: Lab) -> None:
    """A program chooses how often, and each of Docker's events is looked at: with all of them, in ever more time."""
    words = ["-d", "--name", "loop", "--restart=on-failure:3", "--network=none", *lab.volume(gpu_memory="3GiB")]
    await lab.docker("run", *words, IMAGE, "sh", "-c", "exit 5")
    ended = Container.objects.filter(exit_code=5).order_by("created_at")
    while await query(ended.count) < 4:
        await lab.docker("wait", "loop")
    last = str((await query(lambda: list(ended)))[-1].pk)
    assert list(lab.up.engine._watch.mounted._runs) == [last]
    await lab.stop()
    await lab.start()
    assert list(lab.up.engine._watch.mounted._runs) == [last]
    await lab.docker("rm", "loop")
    await lab.nothing_is_held()
