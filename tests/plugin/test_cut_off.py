"""The scheduler is killed at each step of Create, Mount, Unmount and Remove, and of what follows them.

Docker repeats a call that had no answer, but forgets what it had said (its client has sent the body already): who was
killed in the middle of a call has it refused in words, and the same command goes the next time. In between nothing is
promised twice, and nothing is held in the end.
"""

import asyncio
import contextlib
import sys
from typing import Any

import pytest
from django.utils import timezone

from tests.plugin.conftest import IMAGE, Lab
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import ROOT, SeparateScheduler, query
from web.models import Claim, Container, Node, Volume

pytestmark = [pytest.mark.long, pytest.mark.docker]
RUN = """
import functools, importlib, inspect, os, django
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings")
django.setup()
from django.core.management import call_command
import scheduler.worker
module, name, when = os.environ["DIES_AT"].split(":")
*path, last = name.split(".")
owner = functools.reduce(getattr, path, importlib.import_module(module))
real = getattr(owner, last)
die = lambda: os.kill(os.getpid(), 9)

def called(*arguments, **options):
    if when == "before":
        die()
    result = real(*arguments, **options)
    if inspect.isawaitable(result):
        return awaited(result)
    die()

async def awaited(result):
    await result
    die()

setattr(owner, last, called)
call_command("runscheduler")
"""
STEPS = {
    "Create": "web.services.mounting:make",
    "Mount": "scheduler.plugin.mounts:Mounts.mount",
    "its record": "web.services.mounting:mount",
    "the core": "scheduler.containers.registry:Containers.admit",
    "its folder": "scheduler.plugin.folders:Folders.give",
    "its start": "scheduler.containers.registry:Containers._started",
    "Unmount": "scheduler.plugin.mounts:Mounts.unmount",
    "its end": "scheduler.containers.registry:Containers._ended",
    "Remove": "web.services.mounting:remove",
}


class Dying(SeparateScheduler):
    """Kills itself before or after it does something for the first time."""

    async def start(self) -> None:
        """Returns when it has found Docker, and shown a sign of life; or has died."""
        begun = timezone.now()
        self._process = await asyncio.create_subprocess_exec(sys.executable, "-c", RUN, cwd=ROOT, env=self._environment)
        seen = Node.objects.filter(seen_at__gte=begun)

        async def there_or_dead() -> bool:
            return self._process.returncode is not None or await query(seen.exists)

        await eventually(there_or_dead)

    async def died(self) -> None:
        assert self._process is not None
        assert await asyncio.wait_for(self._process.wait(), 60) == -9


@contextlib.asynccontextmanager
async def until_it_dies(lab: Lab, at: str) -> Any:
    """In place of the lab's own scheduler, one that dies; then the lab's again."""
    await lab.stop()
    environment = {
        "GPUSHARE_ENGINE": "docker", "GPUSHARE_DOCKER_HOST": lab.dockerd.address, "GPUSHARE_PLUGIN_PEOPLE": "ada bob",
        "GPUSHARE_PLUGIN_SOCKET": str(lab.socket), "DIES_AT": at,
    }  # fmt: skip
    dying = Dying(lab.home, **environment)
    await asyncio.wait_for(dying.start(), PATIENCE)
    try:
        await eventually(lab.socket.exists)
        yield
        await dying.died()
    finally:
        await dying.kill()
        await lab.start()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_it_goes_on_or_is_refused_in_words_and_goes_the_next_time(
    lab: Lab, step: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.plugin.mounts.ASKED_AGAIN_WITHIN", 0.0)
    words = ["run", "--rm", "--name", "mine", "--network=none", *lab.card, *lab.volume(gpu_memory="2GiB"), IMAGE]
    words += ["workload", "--bytes", "1GiB", "--hold", "1"]
    async with until_it_dies(lab, f"{STEPS[step]}:{when}"):
        process = await lab.docker_begin(*words)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    if process.returncode:
        assert process.returncode == 125, out.decode()
        assert "the scheduler was restarted over this call" in out.decode()
        await lab.nothing_is_held()
        out = (await lab.docker(*words)).encode()
    assert b"done" in out
    await lab.nothing_is_held()
    made = await query(lambda: list(Container.objects.exclude(started_at=None)))
    assert [container.name for container in made] == ["mine"]
    claim = await query(Claim.objects.get, container=made[0])
    assert (claim.quota, claim.granted) == (2 << 30, 0)
    if step == "Unmount":
        assert made[0].exit_code == 0
    for volume in (await lab.docker("volume", "ls", "-q")).split():  # Docker's Remove may have been cut off, too
        await lab.docker("volume", "rm", volume)
    assert await query(Volume.objects.count) == 0


async def test_what_docker_never_asks_for_again_is_given_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler was killed over a Mount, and who had asked for it has gone too."""
    monkeypatch.setattr("scheduler.plugin.mounts.ASKED_AGAIN_WITHIN", 0.0)
    async with until_it_dies(lab, "web.services.mounting:mount:after"):
        process = await lab.docker_begin("create", "--name", "idle", *lab.volume("v", gpu_memory="2GiB"), IMAGE, "true")
        assert await process.wait() == 0, await process.communicate()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ValueError):
            await lab.call("VolumeDriver.Mount", Name="v", ID="m")
    await lab.nothing_is_held()
    (container,) = await query(lambda: list(Container.objects.all()))
    assert container.reason == "Docker has mounted its volume, and did not start it."
    assert "idle" in await lab.docker("ps", "-a")  # it is Docker's: nobody here takes it away
