"""What the cluster reads of this node's cards: one ResourceSlice, which is the whole pool of this node.

Each card is a device that may be allocated many times, and whose memory is what is divided (KEP-5075, consumable
capacity). An API server that does not know that drops the words silently, and would then give a whole card to one pod
without a quota: so what was written is read back, and taken away again if it is not what was meant.

    shown      what the cluster should read now (`show`)
    published  compares it with what the cluster has, and writes; the pool's generation rises with each change
    watched    who changes or removes it (a kubelet removes what is of a driver that was away) has it written again
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.kubernetes.api.client import JSON, RESOURCES, Api, ApiError
from scheduler.kubernetes.api.quantity import MIB, write
from scheduler.kubernetes.names import CAPACITY, DRIVER, device_name
from scheduler.kubernetes.units import RESOURCE
from web.spec import quotas

log = logging.getLogger(__name__)

PATH = f"{RESOURCES}/resourceslices"
TRIES_AGAIN = 5.0  # seconds after the API server refused or was away
PAUSE = 1.0  # seconds, after what others do
LOOKS_AGAIN = 300.0  # seconds, where nothing is written meanwhile
GATE_OFF = (
    "This cluster drops {}: its feature gate DRAConsumableCapacity is off (on by default from Kubernetes 1.36 on). "
    "No card is offered to claims, as it would go to one pod as a whole, and without a quota; {} are counted instead."
)
TOO_OLD = "This cluster has no ResourceSlices of v1 (from Kubernetes 1.34 on); {} are counted instead."


class GateOff(Exception):
    """The cluster cannot divide a device's memory; the message says so."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A card as the cluster should see it. `memory`: bytes to allocate; `taint`: why nothing new should come."""

    uuid: str
    memory: int
    product: str
    architecture: str
    driver: str
    computing: str
    taint: str = ""


class Slices:
    def __init__(self, api: Api, node: str) -> None:
        self._api, self._node = api, node
        self.name = _slice_name(node)
        self._offers: tuple[Offer, ...] = ()
        self._changed = asyncio.Event()
        self.cannot_divide = asyncio.Event()  # set for good once the cluster was seen not to
        self._generation = 0  # the highest that the cluster has
        self._tainting = True  # until a server is seen to drop taints: they have a feature gate of their own
        self.problem = "Nothing has been published yet."  # a sentence; empty if the cluster has what was shown last

    def show(self, offers: Iterable[Offer]) -> None:
        """From now on. At once if the cluster is there, else when it is again."""
        if (offers := tuple(offers)) != self._offers:
            self._offers = offers
            self._changed.set()

    async def run(self) -> None:
        """Keeps the slice up to date, until cancelled, or until it was seen that the cluster cannot divide.

        Then units are counted, and the same memory is not to be offered by both, also if the cluster can by then.
        """
        await self._changed.wait()  # a pool without devices is no beginning
        while not self.cannot_divide.is_set():
            self._changed.clear()
            try:
                version = await self._publish()
            except GateOff as error:
                log.error("the cards are not offered to the cluster: %s", error)
                self.problem = str(error)
                self.cannot_divide.set()
            except ApiError as error:
                if str(error) != self.problem:
                    log.error("the cards are not offered to the cluster: %s", error)
                self.problem = str(error)
                await self._wait(TRIES_AGAIN)
            else:
                if self.problem:
                    log.info("the cluster is offered %d GPU%s", len(self._offers), "s" * (len(self._offers) != 1))
                self.problem = ""
                await self._until_changed(version)

    async def remove(self) -> None:
        """At the end of the driver: nothing more is allocated here. Raises ApiError."""
        for found in (await self._find())[0]:
            await self._api.delete(f"{PATH}/{found['metadata']['name']}")

    async def _find(self) -> tuple[list[JSON], str]:
        return await self._api.find(PATH, **{"spec.driver": DRIVER, "spec.nodeName": self._node})

    async def _publish(self) -> str:
        """The version of the list from which a change would be news. Raises ApiError or GateOff."""
        try:
            found, version = await self._find()
        except ApiError as error:
            if error.status == 404:
                raise GateOff(TOO_OLD.format(RESOURCE)) from None
            raise
        for other in found:
            self._generation = max(self._generation, int(other["spec"]["pool"]["generation"]))
        mine = next((each for each in found if each["metadata"]["name"] == self.name), None)
        for other in found:
            if other is not mine:  # of somebody who takes himself for us
                await self._api.delete(f"{PATH}/{other['metadata']['name']}")
        meant = self._spec()  # there may be others to show before this is read back
        if mine is not None and _same(mine["spec"], meant):
            return version
        written = await self._write(mine, meant)
        back = await self._api.get(f"{PATH}/{self.name}")
        if back["metadata"]["resourceVersion"] != written:  # somebody else's by now: it says nothing of what was kept
            return written
        if missing := _dropped(meant, back["spec"]):
            await self._api.delete(f"{PATH}/{self.name}")
            raise GateOff(GATE_OFF.format(missing, RESOURCE))
        if any(map(_taints, meant["devices"])) and not any(map(_taints, back["spec"]["devices"])):
            self._tainting = False
            log.warning("The cluster drops taints of devices: it does not hear of foreign memory and broken cards.")
        return written

    async def _write(self, mine: JSON | None, spec: JSON) -> str:
        """The version that it has then."""
        self._generation += 1
        body: JSON = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": self.name, "ownerReferences": await self._owners()},
            "spec": {**spec, "pool": {**spec["pool"], "generation": self._generation}},
        }
        if mine is None:
            stored = await self._api.create(PATH, body)
        else:
            body["metadata"] = {**mine["metadata"], "ownerReferences": body["metadata"]["ownerReferences"]}
            stored = await self._api.replace(f"{PATH}/{self.name}", body)
        return str(stored["metadata"]["resourceVersion"])

    async def _owners(self) -> list[JSON]:
        """The node: what is written of it goes with it. One that was taken out and put back is another by its uid."""
        node = await self._api.get(f"/api/v1/nodes/{self._node}")
        uid = node["metadata"]["uid"]
        return [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True}]

    def _spec(self) -> JSON:
        return {
            "driver": DRIVER,
            "nodeName": self._node,
            "pool": {"name": self._node, "generation": 0, "resourceSliceCount": 1},
            "devices": [_device(offer, self._tainting) for offer in self._offers],
        }

    async def _until_changed(self, version: str) -> None:
        """Until what should be there, or what is there, is another."""
        watching = asyncio.create_task(self._watch(version))
        try:
            await self._wait(LOOKS_AGAIN, watching)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, version: str) -> None:
        """Returns with the first news. A list that is too old, or a watch that breaks, is a reason to look, too.

        But not at once: who ends each watch, or changes what we write whenever we do, is not to keep us busy.
        """
        try:
            fields = {"spec.driver": DRIVER, "spec.nodeName": self._node}
            async for event in self._api.watch(PATH, version, **fields):
                if event["type"] != "BOOKMARK":
                    break
        except ApiError as error:
            log.debug("the watch has ended: %s", error)
        await asyncio.sleep(PAUSE)

    async def _wait(self, within: float, other: asyncio.Task[None] | None = None) -> None:
        changed = asyncio.create_task(self._changed.wait())
        try:
            tasks = [changed] if other is None else [changed, other]
            await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()


def _device(offer: Offer, tainting: bool) -> JSON:
    memory = offer.memory // MIB * MIB
    texts = {
        "uuid": offer.uuid, "product": offer.product, "architecture": offer.architecture, "driver": offer.driver,
        "computing": offer.computing,
    }  # fmt: skip
    policy = {
        "default": write(min(quotas.DEFAULT, memory)),
        "validRange": {"min": "1Mi", "max": write(memory), "step": "1Mi"},
    }
    device: JSON = {
        "name": device_name(offer.uuid),
        "allowMultipleAllocations": True,
        "attributes": {name: {"string": text[:64]} for name, text in texts.items() if text},
        "capacity": {CAPACITY: {"value": write(memory), "requestPolicy": policy}},
    }
    if offer.taint and tainting:
        device["taints"] = [{"key": f"{DRIVER}/{offer.taint}", "effect": "NoSchedule"}]
    return device


def _same(there: JSON, meant: JSON) -> bool:
    """But for the generation, and for when a taint was added."""
    return {**there, "pool": 0, "devices": _plain(there)} == {**meant, "pool": 0, "devices": _plain(meant)}


def _plain(spec: JSON) -> list[JSON]:
    return [{**device, "taints": _taints(device)} for device in spec.get("devices") or []]


def _taints(device: JSON) -> list[JSON]:
    return [{name: taint[name] for name in ("key", "effect")} for taint in device.get("taints") or []]


def _dropped(meant: JSON, there: JSON) -> str:
    """Which of the words that a quota hangs on the server has not kept; empty if it has them all."""
    kept = {device["name"]: device for device in there.get("devices") or []}
    for device in meant["devices"]:
        there = kept.get(device["name"], {})
        if not there.get("allowMultipleAllocations"):
            return "allowMultipleAllocations"
        if "requestPolicy" not in there.get("capacity", {}).get(CAPACITY, {}):
            return "requestPolicy"
    return ""


def _slice_name(node: str) -> str:
    """One that only this node's driver has, and nobody has to remember."""
    name = f"{node}-{DRIVER}"
    return name if len(name) <= 253 else f"{hashlib.sha256(node.encode()).hexdigest()[:32]}-{DRIVER}"
