"""Where a cluster cannot divide a device's memory: the kubelet counts units of it (units.py, kubelet/plugin.py).

The kubelet says which units a container gets, and neither whose they are nor when they are free again. So a container
of ours is made without a pod, for the account that the setting has for all others; who it is, the kubelet's list of
its pods' resources tells a moment later, and that it has ended when its units are not in that list any more, or are
given to another.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.kubernetes import units
from scheduler.kubernetes.claims import Allocated, Part, usual
from scheduler.kubernetes.driver import Driver
from scheduler.kubernetes.kubelet.plugin import DevicePlugin, Given, Holder
from scheduler.kubernetes.kubelet.sockets import CannotServe
from scheduler.kubernetes.names import device_name
from scheduler.kubernetes.pods import Pods, recalled
from scheduler.kubernetes.records import Record
from scheduler.kubernetes.words import in_words
from web.logs import ById

log = logging.getLogger(__name__)

LOOKS_EVERY = 2.0  # seconds
TRIES_AGAIN = 5.0
REQUEST = "memory"


class Counting:
    """`cards`: bytes that may be promised of each card at best, and now, by UUID.

    `in_use`: the containers, by our id, of which some program runs. Blocking.
    """

    def __init__(
        self,
        folder: Path,
        driver: Driver,
        pods: Pods,
        in_use: Callable[[], set[str]],
        cards: Callable[[], Mapping[str, tuple[int, int]]],
    ) -> None:
        self._driver, self._pods, self._in_use, self._cards = driver, pods, in_use, cards
        self._gone: set[str] = set()  # whose units were not in the kubelet's list at the last look, by uid
        self.plugin = DevicePlugin(
            folder,
            units.RESOURCE,
            self._units,
            units.preferred,
            self._allocate,
            lambda error: f"gpushare: {in_words(error)}",
        )

    async def run(self) -> None:
        """As long as units are to be offered; until cancelled."""
        async with asyncio.TaskGroup() as together:
            together.create_task(self._serve())
            together.create_task(self._look())

    async def _serve(self) -> None:
        while True:
            try:
                await self.plugin.run()
            except CannotServe as error:
                self.plugin.registered = str(error)
                log.error("%s", error)
            await asyncio.sleep(TRIES_AGAIN)

    def _units(self) -> Mapping[str, str]:
        used = {unit for record in self._driver.records() for unit in record.units}
        return units.units({device_name(card): sizes for card, sizes in self._cards().items()}, used)

    async def _allocate(self, asked: Sequence[Sequence[str]]) -> Sequence[Given]:
        """All of them or none. Raises Problem, DatabaseError or OSError."""
        uids = [str(uuid.uuid4()) for _ in asked]
        try:
            made = [await self._one(uid, ids) for uid, ids in zip(uids, asked, strict=True)]
            return [_given(*await asyncio.to_thread(self._driver.equipment, record)) for record in made]
        except Exception:
            for uid in uids:
                await self._driver.give_back(uid)
            raise

    async def _one(self, uid: str, ids: Sequence[str]) -> Record:
        device, memory = units.allocated(ids, self._units())
        for earlier in self._driver.records():
            if set(earlier.units) & set(ids):  # the kubelet has ended it
                await self._driver.give_back(earlier.uid)
        part = Part(REQUEST, self._driver.pool, device, memory)
        allocated = Allocated("", f"memory-{uid[:8]}", uid, [part], usual())
        return await self._driver.promise(allocated, ids)

    # ---- whose they are, and when they are free ----

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOKS_EVERY)
            await self.look()

    async def look(self) -> None:
        holders = await self.plugin.holders()
        if holders is None:
            return
        counted = [record for record in self._driver.records() if record.units]
        in_use = await asyncio.to_thread(self._in_use) if counted else set()
        held = {record.uid: next((each for each in holders if each.units & set(record.units)), None)
                for record in counted}  # fmt: skip
        # The kubelet lists a pod a moment after it has asked for its units: gone is what was not there twice.
        earlier, self._gone = self._gone, {uid for uid, holder in held.items() if holder is None}
        for record in counted:
            try:
                await self._look_at(record, held[record.uid], record.id in in_use, record.uid in earlier)
            except Exception as error:  # that of one is no reason not to look at the others
                log.debug("container %s: its units are looked at later: %s", ById(record.id), in_words(error))

    async def _look_at(self, record: Record, holder: Holder | None, in_use: bool, was_gone: bool) -> None:
        if holder is None and was_gone:
            log.info("container %s: the kubelet has its units again", ById(record.id))
            await self._driver.give_back(record.uid)
        elif holder is not None and not record.pods:
            if pod := await self._pods.holder(holder.namespace, holder.pod, holder.container):
                await self._driver.see_holder(record.uid, pod, holder.namespace)
        elif holder is not None and not in_use:
            # Kubelets list the units of a pod that has ended until they need them, or the pod is deleted.
            (pod,) = recalled(record.pods)
            if await self._pods.is_over(record.namespace, pod):
                await self._driver.give_back(record.uid)


def _given(specification: Mapping[str, Any], others: Sequence[str]) -> Given:
    """The edits of a CDI specification, as the device plugin API says them: it is older than CDI."""
    (device,) = specification["devices"]
    both = [specification["containerEdits"], device["containerEdits"]]
    variables = [entry.split("=", 1) for each in both for entry in each.get("env", [])]
    mounts = [mount for each in both for mount in each.get("mounts", [])]
    nodes = [node["path"] for each in both for node in each.get("deviceNodes", [])]
    return Given(
        dict(variables),
        [(each["containerPath"], each["hostPath"], "ro" in each["options"]) for each in mounts],
        nodes,
        others,
    )
