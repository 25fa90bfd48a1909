"""A node of a cluster: a real scheduler with its driver, the fake kubelet of that node, and the fake API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from tests.kubernetes.cluster.allocator import Allocator
from tests.kubernetes.cluster.api_server import NODES, SLICES, TOKEN, ApiServer
from tests.kubernetes.cluster.kubelet import Kubelet
from tests.kubernetes.cluster.pods import Pods
from tests.kubernetes.cluster.rules import JSON
from tests.support.eventually import eventually
from tests.support.host import Host, query
from web.models import Container

NODE = "node-1"
DRIVER = "gpushare.dev"
WORKS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Lab(Host):
    """`api`, `kubelet`, `allocator` and `pods` are the cluster's."""

    api: ApiServer
    kubelet: Kubelet
    allocator: Allocator
    pods: Pods
    cdi: Path

    @property
    def node(self) -> Any:
        return self.up.plugin

    async def published(self) -> JSON:
        """The slice of this node, once the cluster has it and the kubelet its driver."""
        await eventually(lambda: self.api.all(SLICES) and DRIVER in self.kubelet.drivers)
        (found,) = self.api.all(SLICES)
        return found

    async def prepare(self, claim: JSON) -> Any:
        """What the kubelet is answered for it: CDI devices by request, or a sentence."""
        (answer,) = (await self.kubelet.prepare(claim)).values()
        return answer

    async def unprepare(self, claim: JSON) -> None:
        assert set((await self.kubelet.unprepare(claim)).values()) == {""}

    async def running_pod(self, size: str = "1Gi") -> tuple[JSON, Container]:
        """A pod "train" of team-a that has claimed so much of the card, and its container here."""
        pod = await self.pods.make("train", {"main": await self.allocator.claim(size)})
        await self.pods.start(pod)
        (container,) = await self.living()
        return pod, container

    def specification(self, claim: JSON) -> JSON:
        found: JSON = json.loads((self.cdi / f"gpushare.dev-claim_{claim['metadata']['uid']}.json").read_text())
        return found

    async def nothing_is_held(self) -> None:
        """Nobody lives, nothing is promised, and no file or folder is left."""
        await eventually(lambda: not self.up.broker.live_containers)
        folders = (self.home / "sockets", self.home / "kubernetes" / "claims", self.cdi)
        await eventually(lambda: not [path for folder in folders if folder.exists() for path in folder.iterdir()])
        await self.up.store.durable()
        assert await self.living() == []


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.put(NODES, NODE, {})
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def gpus() -> str:
    """What simulated cards the node has."""
    return "sim:1x5GiB"


@pytest.fixture
async def lab(
    transactional_db: None, settings: Any, gpus: str, api: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Lab]:
    settings.GPUSHARE_ENGINE = "kubernetes"
    settings.GPUSHARE_GPUS = gpus
    settings.GPUSHARE_POLICY = "fifo"
    home = settings.GPUSHARE_HOME = tmp_path_factory.mktemp("home")
    place = tmp_path_factory.mktemp("k")
    settings.GPUSHARE_NODE = NODE
    settings.GPUSHARE_KUBELET, settings.GPUSHARE_CDI_FOLDER = str(place / "kubelet"), str(place / "cdi")
    settings.GPUSHARE_KUBERNETES_API = api.url
    settings.GPUSHARE_KUBERNETES_ACCOUNT = str(place)
    settings.GPUSHARE_KUBERNETES_PEOPLE = {"team-a": "ada", "team-b": "bob"}
    (place / "token").write_text(f"{TOKEN}\n")
    for name in ("ada", "bob"):
        await query(User.objects.create_user, name)
    host = Lab(home)
    host.api, host.cdi, host.allocator = api, place / "cdi", Allocator(api)
    host.kubelet = Kubelet(place / "kubelet", api, NODE)
    host.kubelet.start()
    host.pods = Pods(api, host.kubelet, host.allocator)
    await host.start()
    try:
        yield host
    finally:
        await host.pods.close()
        await host.kubelet.stop()
        await host.stop()
        await asyncio.sleep(0)
