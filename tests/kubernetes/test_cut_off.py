"""The driver, as `manage.py runkubernetes`, is killed at each step of a claim's way in and out.

The kubelet has no answer then, and asks again: the answer is what it would have been at first, nothing is
promised twice, and when the claim is given back, nothing is left.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
from django.conf import settings
from django.db import connection

from tests.kubernetes.cluster.api_server import PODS, SLICES
from tests.kubernetes.conftest import Lab
from tests.support.eventually import eventually
from tests.support.host import GIB, ROOT, query
from web.models import Claim, Command, Container

pytestmark = pytest.mark.timeout(180)

PREPARING = {
    "our record": "scheduler.kubernetes.records:Records.keep",
    "the database's": "web.services.claiming:claim",
    "the core": "scheduler.containers.registry:Containers.admit",
    "the socket": "scheduler.sessions.server:Server.listen",
    "the specification": "scheduler.kubernetes.cdi:Specifications.write",
}
GIVING_BACK = {
    "the specification": "scheduler.kubernetes.cdi:Specifications.remove",
    "its end": "scheduler.containers.registry:Containers._ended",
    "our record": "scheduler.kubernetes.records:Records.drop",
}
ENDING = {
    "the command": "scheduler.containers.intents:Intents.kill",
    "its pod": "scheduler.kubernetes.pods:Pods.end",
    "its eviction": "scheduler.kubernetes.pods:Pods._end",
}
MOMENTS = ["before", "after"]


class Separate:
    """`manage.py runkubernetes` as a process of its own, in place of the lab's.

    `step`: where it kills itself; `ready`: returns once the cluster has it.
    """

    def __init__(self, step: str, ready: Callable[[], Awaitable[object]]) -> None:
        self._ready = ready
        run = ["-m", "tests.support.dying", step] if step else ["manage.py"]
        self._words = [*run, "runkubernetes"]
        names = ("HOME", "GPUS", "POLICY", "NODE", "KUBELET", "CDI_FOLDER", "KUBERNETES_API", "KUBERNETES_ACCOUNT")
        self._environment = {
            **os.environ,
            **{f"GPUSHARE_{name}": str(getattr(settings, f"GPUSHARE_{name}")) for name in names},
            "GPUSHARE_KUBERNETES_PEOPLE": ",".join(map("=".join, settings.GPUSHARE_KUBERNETES_PEOPLE.items())),
            "DATABASE_URL": f"sqlite:///{connection.settings_dict['NAME']}",
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *self._words, cwd=ROOT, env=self._environment
        )
        await self._ready()

    async def ended(self) -> int:
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), 60)

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self.ended()


@contextlib.asynccontextmanager
async def another(
    lab: Lab, step: str = "", ready: Callable[[], Awaitable[object]] | None = None
) -> AsyncIterator[Separate]:
    """In place of the lab's own driver; then the lab's again."""
    await lab.stop()
    assert lab.api.all(SLICES) == []
    separate = Separate(step, ready or lab.published)
    try:
        await separate.start()
        yield separate
    finally:
        await separate.stop()
        await lab.kubelet.wipe()  # as it does with what is of a driver that is gone
        lab.kubelet.drivers.clear()
        await lab.start()


async def test_the_command_offers_the_cards_and_prepares_claims(lab: Lab) -> None:
    async with another(lab) as separate:
        claim = await lab.allocator.claim("2Gi")
        first = await lab.prepare(claim)
        await separate.stop()
        assert lab.api.all(SLICES) == []
    await lab.published()
    assert await lab.prepare(claim) == first
    assert [each.quota for each in await query(lambda: list(Claim.objects.all()))] == [2 * GIB]
    await lab.unprepare(claim)
    await lab.nothing_is_held()


@pytest.mark.long
@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("step", PREPARING)
async def test_killed_while_it_prepares_a_claim(lab: Lab, step: str, when: str) -> None:
    claim = None
    async with another(lab, f"{PREPARING[step]}:{when}") as dying:
        claim = await lab.allocator.claim("2Gi")
        with pytest.raises(grpc.aio.AioRpcError):
            await lab.prepare(claim)
        assert await dying.ended() == -9
    await lab.published()
    assert isinstance(await lab.prepare(claim), dict)
    (container,) = await lab.living()
    assert (await lab.claim(container)).quota == 2 * GIB
    assert list(lab.up.broker.live_containers) == [str(container.pk)]
    other = await lab.allocator.claim("3Gi")
    assert isinstance(await lab.prepare(other), dict)  # all the rest of the card is there
    await lab.unprepare(claim)
    await lab.unprepare(other)
    await lab.nothing_is_held()


@pytest.mark.long
@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("step", PREPARING)
async def test_killed_while_it_prepares_what_nobody_asks_for_again(lab: Lab, step: str, when: str) -> None:
    """The pod was deleted meanwhile: the kubelet gives back what it does not know to be prepared."""
    async with another(lab, f"{PREPARING[step]}:{when}"):
        claim = await lab.allocator.claim("2Gi")
        with pytest.raises(grpc.aio.AioRpcError):
            await lab.prepare(claim)
    await lab.published()
    await lab.unprepare(claim)
    await lab.nothing_is_held()


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("step", GIVING_BACK)
async def test_killed_while_it_takes_a_claim_back(lab: Lab, step: str, when: str) -> None:
    async with another(lab, f"{GIVING_BACK[step]}:{when}") as dying:
        claim = await lab.allocator.claim("2Gi")
        assert isinstance(await lab.prepare(claim), dict)
        with pytest.raises(grpc.aio.AioRpcError):
            await lab.kubelet.unprepare(claim)
        assert await dying.ended() == -9
    await lab.published()
    await lab.unprepare(claim)
    await lab.nothing_is_held()
    assert await query(Container.objects.count) == 1


@pytest.mark.long
@pytest.mark.parametrize("step", ENDING)
async def test_killed_while_it_has_a_pod_ended(lab: Lab, step: str) -> None:
    """The next one carries out what a person has asked for: the pod is ended, and once."""
    async with another(lab, f"{ENDING[step]}:before") as dying:
        pod = await lab.pods.make("train", {"main": await lab.allocator.claim("2Gi")})
        await lab.pods.start(pod)
        container = await query(Container.objects.get)
        command = await query(Command.objects.create, kind="kill", container=container)
        assert await dying.ended() == -9
    assert (await lab.answer(command)).outcome == "done"
    await lab.until(container, "killed")
    await eventually(lambda: lab.api.all(PODS) == [])
    await lab.nothing_is_held()
