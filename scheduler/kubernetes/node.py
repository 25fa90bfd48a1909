"""The driver of a node, put together: what the kubelet asks (driver.py), what the cluster reads (slices.py)."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from django.conf import settings

from scheduler.card.turns import TurnPlayer
from scheduler.containers.registry import Containers
from scheduler.containers.terminator import Terminator
from scheduler.engines.base import EngineError
from scheduler.engines.runtime_environment import RuntimeEnvironment, keep_folder
from scheduler.gpus import Gpus, Reading
from scheduler.kubernetes.api.client import Api, ApiError
from scheduler.kubernetes.api.slices import Offer, Slices
from scheduler.kubernetes.counting import Counting
from scheduler.kubernetes.driver import Driver
from scheduler.kubernetes.engine import KubernetesEngine
from scheduler.kubernetes.kubelet.server import KubeletServer
from scheduler.kubernetes.kubelet.sockets import CannotServe
from scheduler.kubernetes.names import ARCHITECTURES
from scheduler.kubernetes.pods import Pods
from scheduler.kubernetes.runtime_environment import RuntimeEnvironments
from scheduler.shared import SharedParts
from scheduler.store import Store

log = logging.getLogger(__name__)

LOOKS_EVERY = 2.0  # seconds; what the cards are like is shown to the cluster by then
FORGOTTEN_EVERY = 60.0
TRIES_AGAIN = 5.0
GOES_WITHIN = 5.0  # seconds in which the API server may take our slice away at the end


class Node:
    def __init__(self, home: Path, gpus: Gpus, store: Store) -> None:
        self._place, self._gpus = home / "kubernetes", gpus
        self._ailing: dict[str, str] = {}  # GPU → why nothing new should come to it, by the last look
        self._answering: set[str] | None = None  # cards that had a reading the last time
        self._serves = False  # the kubelet's driver is this one
        self._failed: set[str] = set()  # that have reported a critical error: until this host's driver is started anew
        try:
            self._api = Api(settings.GPUSHARE_KUBERNETES_API, Path(settings.GPUSHARE_KUBERNETES_ACCOUNT))
        except ApiError as error:
            raise EngineError(str(error)) from None
        self.slices = Slices(self._api, settings.GPUSHARE_NODE)

    async def open(self) -> None: ...

    def engine(self, runtime_environment: RuntimeEnvironment) -> KubernetesEngine:
        # What is mounted is looked for on the host, which has our home, and not what is in our image.
        if given := runtime_environment.simulation:
            given = replace(given, libraries=keep_folder(given.libraries, runtime_environment.shim.parent / "sim"))
        self._engine = KubernetesEngine(replace(runtime_environment, simulation=given))
        return self._engine

    def meet(self, shared: SharedParts, containers: Containers, ender: Terminator, turns: TurnPlayer) -> None:
        self._broker, self._turns, kubelet = shared.broker, turns, Path(settings.GPUSHARE_KUBELET)
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        totals = {uuid: card.total for uuid, card in self._gpus.cards.items()}
        outfitter = RuntimeEnvironments(
            Path(settings.GPUSHARE_CDI_FOLDER),
            self._place,
            self._engine.runtime_environment,
            settings.GPUSHARE_GPU_ACCESS,
            totals,
        )
        pods = Pods(self._api, settings.GPUSHARE_KUBERNETES_KILL)
        self.driver = Driver(shared, self._engine, containers, pods, outfitter)
        self._engine.meet(self.driver, shared.server.folder)
        self.counting = Counting(kubelet, self.driver, pods, self._engine.in_use, self._sizes)
        self.kubelet = KubeletServer(kubelet, self.driver.prepare, self.driver.unprepare, self.driver.fault)

    async def expect(self) -> None:
        """Before the engine is asked what it has. Raises DatabaseError or OSError."""
        await self.driver.expect()

    def give_again(self) -> None: ...  # containers see the folders that the sockets are in

    async def run(self) -> None:
        """Once all is taken over, until cancelled. What all of a node share is left alone where another serves it."""
        while True:
            try:
                with self.kubelet.alone():
                    self._serves = True
                    await self.driver.begin()
                    async with asyncio.TaskGroup() as together:
                        for part in (self._serve, self._offer, self.slices.run, self._count, self._look_for_forgotten):
                            together.create_task(part())
            except CannotServe as error:
                self.kubelet.registered = str(error)
                log.error("%s", error)
            await asyncio.sleep(TRIES_AGAIN)

    def see(self, readings: Mapping[str, Reading]) -> None:
        """To be called with each reading of the cards."""
        self._answering = set(readings)
        self._failed |= {uuid for uuid, reading in readings.items() if reading.xid is not None}

    async def close(self) -> None:
        """Nothing more is allocated here; what is prepared stays so."""
        try:
            async with asyncio.timeout(GOES_WITHIN):
                if self._serves:
                    await self.slices.remove()
        except (ApiError, TimeoutError) as error:
            log.warning("the cluster goes on offering this node's cards, until its kubelet notices: %s", error)
        await self._api.close()

    async def _serve(self) -> None:
        while True:
            try:
                await self.kubelet.run()
            except CannotServe as error:
                self.kubelet.registered = str(error)
                log.error("%s", error)
            await asyncio.sleep(TRIES_AGAIN)

    async def _offer(self) -> None:
        while True:
            self.slices.show(self._offers())
            await self._engine.look_at_paused()
            await asyncio.sleep(LOOKS_EVERY)

    async def _count(self) -> None:
        """Once it is known that the cluster cannot divide: until a restart, as what is counted then has claims."""
        await self.slices.cannot_divide.wait()
        await self.counting.run()

    def _sizes(self) -> dict[str, tuple[int, int]]:
        """Of a card that is lost or has failed nothing is there."""
        gpus = self._broker.state.gpus.items()
        return {uuid: (gpu.most, 0 if self._fault(uuid) else min(gpu.capacity, gpu.most)) for uuid, gpu in gpus}

    def _offers(self) -> list[Offer]:
        """A fault of a card is reported at the second look in a row: a program that comes and goes is no reason."""
        gpus = self._broker.state.gpus.items()
        ailing = {uuid: self._fault(uuid) or _missing(gpu.capacity, gpu.most) for uuid, gpu in gpus}
        taints = {uuid: why for uuid, why in ailing.items() if self._ailing.get(uuid)}
        self._ailing = ailing
        return [
            Offer(
                uuid=card.uuid,
                memory=card.capacity(0),
                product=card.name,
                architecture=ARCHITECTURES.get(card.architecture, ""),
                driver=self._gpus.driver,
                computing=self._turns.mode(card.uuid).value,
                taint=taints.get(card.uuid, ""),
            )
            for card in self._gpus.cards.values()
        ]

    def _fault(self, uuid: str) -> str:
        if self._broker.state.gpus[uuid].drained:
            return "out-of-service"
        if uuid in self._failed:
            return "critical-error"
        return "" if self._answering is None or uuid in self._answering else "lost"

    async def _look_for_forgotten(self) -> None:
        while True:
            await asyncio.sleep(FORGOTTEN_EVERY)
            await self.driver.look_at_claims()


def _missing(now: int, most: int) -> str:
    """Why nothing new should come to a card that has so many bytes for containers; empty if all of it is there."""
    if now >= most:
        return ""
    return "foreign-memory" if now else "no-memory"
