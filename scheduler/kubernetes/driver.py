"""From a claim that the kubelet has to prepare to a container that has its quota, and from its end to all given back.

    prepare     the claim is read from the API server, as the kubelet names it and no more; then, each before the next:
                our record on the disk, the database's, the core, the socket, the CDI specification, the answer
    unprepare   the specification goes first, so that nothing more is started with it; then the container has ended,
                and when the database has that, the record goes

Both can be repeated, by a kubelet that waited in vain as by one that was restarted, and a kill between any two steps
leaves what the next start knows what to do with. What is prepared is answered from the record: an API server that is
away holds up new claims only. A claim whose Unprepare never comes (the node was taken out of the cluster and put back)
is given back when the API server does not know it any more and no program has its socket.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.conf import settings

from scheduler import clock
from scheduler.containers.registry import Containers, as_live_container, as_problem
from scheduler.engines.base import EngineAway, EngineError
from scheduler.kubernetes import claims
from scheduler.kubernetes.api.client import RESOURCES, ApiError, path_of
from scheduler.kubernetes.claims import Allocated
from scheduler.kubernetes.engine import KubernetesEngine
from scheduler.kubernetes.in_turn import InTurn
from scheduler.kubernetes.kubelet.server import Asked, Device
from scheduler.kubernetes.names import device_name
from scheduler.kubernetes.pods import CannotEnd, Holders, Pod, Pods, recalled, reserved
from scheduler.kubernetes.records import Record, Records, require_uid
from scheduler.kubernetes.runtime_environment import RuntimeEnvironments
from scheduler.kubernetes.words import in_words
from scheduler.shared import SharedParts
from web.errors import Problem
from web.logs import ById
from web.models import Container
from web.services.claiming import Claimed
from web.sizes import format_size

log = logging.getLogger(__name__)

NEVER = "Kubernetes has given it back before it was prepared."
LOST = "What this node knew of its claim was lost: the kubelet asks for it anew."
FORGOTTEN_AFTER = 60.0  # seconds that a claim has been prepared before anybody asks whether it still is there


class Driver:
    """`pool`: what this node is called in the cluster."""

    def __init__(
        self,
        shared: SharedParts,
        engine: KubernetesEngine,
        containers: Containers,
        pods: Pods,
        outfitter: RuntimeEnvironments,
    ) -> None:
        self._engine, self._containers, self._pods, self._outfitter = engine, containers, pods, outfitter
        self._server, self._store = shared.server, shared.store
        self._records = Records(shared.home / "kubernetes" / "claims")
        self._cards = {uuid: card.capacity(0) for uuid, card in shared.gpus.cards.items()}  # that may be promised
        self._devices = {device_name(card): card for card in self._cards}
        self.pool: str = settings.GPUSHARE_NODE
        self._known: dict[str, Record] = {}  # by uid; each is on the disk
        self._coming: dict[str, Mapping[str, int]] = {}  # by uid: bytes by GPU, of those that the core does not have
        self._turns = InTurn()
        self._holders = Holders()

    # ---- over a restart ----

    async def expect(self) -> None:
        """Before the engine is asked what it has. Raises DatabaseError or OSError."""
        living = {str(row.pk) for row in await self._store.volumes.mounted() if row.finished_at is None}
        stopped = await asyncio.to_thread(self._engine.frozen, living)
        for record in await asyncio.to_thread(lambda: list(self._records.all())):
            if record.id in living:
                self._known[record.uid] = record
                with contextlib.suppress(Problem):  # a pod that came later is not asked
                    self._holders.take(record.uid, list(recalled(record.pods)))
                self._engine.prepared(record.id, record.at, paused=record.id in stopped)
            else:  # it had ended, or the kubelet never had it
                await asyncio.to_thread(self._records.drop, record.uid)
        for id_ in living - {record.id for record in self._known.values()}:
            self._engine.lost(id_, LOST)

    async def begin(self) -> None:
        """Once all is taken over. Raises OSError."""
        await asyncio.to_thread(self._outfitter.clear, list(self._known))
        for uid in [record.uid for record in self.records() if not record.units]:
            await self._turns.next(uid, partial(self._equip_again, uid))

    # ---- what the kubelet asks ----

    async def prepare(self, asked: Asked) -> Sequence[Device]:
        """Raises Problem, ApiError, DatabaseError or OSError."""
        require_uid(asked.uid)
        return await self._turns.once(asked.uid, "prepare", lambda: self._prepare(asked))

    async def unprepare(self, asked: Asked) -> None:
        """One that was never prepared is success. Raises Problem, DatabaseError or OSError."""
        await self.give_back(asked.uid)

    # ---- where it counts units (counting.py) ----

    def records(self) -> list[Record]:
        return list(self._known.values())

    async def promise(self, allocated: Allocated, units: Sequence[str]) -> Record:
        """Raises Problem, DatabaseError or OSError."""
        quotas = self._quotas(allocated)
        self._require_room(allocated.uid, quotas)
        self._coming[allocated.uid] = quotas
        try:
            record = await self._promise(allocated, quotas, [], units)
        finally:
            del self._coming[allocated.uid]
        self._open(record)
        return record

    def equipment(self, record: Record) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Blocking. What its container gets, as a CDI specification of one device; and others' CDI devices."""
        cards = self._cards_of(record)
        return self._outfitter.specification(record.uid, cards, self._server.socket_dir(record.id))

    async def see_holder(self, uid: str, pod: Pod, namespace: str) -> None:
        """It is known now whose it is. Raises DatabaseError or OSError."""
        await self._turns.next(uid, lambda: self._see_holder(uid, pod, namespace))

    async def _see_holder(self, uid: str, pod: Pod, namespace: str) -> None:
        if record := self._known.get(uid):  # it was not given back meanwhile
            shown, image = [pod.as_dict()], pod.containers[0][1] if pod.containers else ""
            await self._store.volumes.seen(record.id, namespace, shown, pod.title(), image)
            await self._keep(replace(record, namespace=namespace, pods=shown))

    async def _prepare(self, asked: Asked) -> Sequence[Device]:
        record = self._known.get(asked.uid)
        if record is None or not self._lives(record.id):
            record = await self._begin(asked)
        self._open(record)
        cards = await self._equip(record)
        return [
            Device([part.request], part.pool, part.device, self._outfitter.ids(record.uid, part.device, cards))
            for part in record.parts
        ]

    async def _equip(self, record: Record) -> Mapping[str, tuple[str, int]]:
        """Returns its cards. Raises Problem or OSError."""
        cards, sockets = self._cards_of(record), self._server.socket_dir(record.id)
        await asyncio.to_thread(self._outfitter.write, record.uid, cards, sockets)
        return cards

    async def _equip_again(self, uid: str) -> None:
        """What an earlier driver has written may name what is not there any more, or be lost by a boot."""
        try:
            if record := self._known.get(uid):
                await self._equip(record)
        except (Problem, OSError) as error:
            log.error("the claim %s: its containers cannot be started anew: %s", uid, in_words(error))

    async def _begin(self, asked: Asked) -> Record:
        claim = await self._read(asked)
        allocated = claims.allocated(claim, asked.uid, self.pool)
        quotas = self._quotas(allocated)
        self._require_room(asked.uid, quotas)
        self._coming[asked.uid] = quotas
        try:
            pods = await self._pods.of(claim)
            self._holders.take(asked.uid, pods)
            return await self._promise(allocated, quotas, pods)
        finally:
            del self._coming[asked.uid]

    async def _promise(
        self, allocated: Allocated, quotas: Mapping[str, int], pods: Sequence[Pod], units: Sequence[str] = ()
    ) -> Record:
        uid, shown = allocated.uid, [pod.as_dict() for pod in pods]
        record = Record(
            str(uuid.uuid4()), uid, allocated.namespace, allocated.name, clock.wall(), allocated.parts, shown, units
        )
        await self._keep(record)
        claimed = Claimed(
            uuid.UUID(record.id), uid, allocated.namespace, allocated.name, quotas, allocated.spec,
            title=pods[0].title() if pods else "",
            account=pods[0].account if pods else "",
            images=[image for pod in pods for _, image in pod.containers],
            pods=shown,
        )  # fmt: skip
        try:
            self._admit(await self._store.volumes.claim(claimed), quotas)
        except Problem as problem:
            await self._call_off(uid, problem.message)
            raise
        return record

    def _open(self, record: Record) -> None:
        """Its programs are heard from now on. The same again changes nothing. Raises OSError."""
        if not self._engine.knows(record.id):
            self._server.listen(record.id)
            self._engine.prepared(record.id, record.at)

    async def _call_off(self, uid: str, reason: str) -> None:
        """Of a promise that was not answered; also if nobody knows whether the database has it. DatabaseError."""
        await self._store.volumes.call_off(uid, reason)
        await self._forget(uid)

    async def _forget(self, uid: str) -> None:
        await asyncio.to_thread(self._records.drop, uid)
        self._known.pop(uid, None)
        self._holders.free(uid)

    async def _keep(self, record: Record) -> None:
        await asyncio.to_thread(self._records.keep, record)
        self._known[record.uid] = record

    def _admit(self, row: Container, quotas: Mapping[str, int]) -> None:
        known = self._containers.find(str(row.pk))
        if known is None and (refused := self._containers.admit(row, as_live_container(row, quotas))):
            problem, over = as_problem(refused), clock.now()
            self._store.container(str(row.pk), finished_at=over, removed_at=over, reason=problem.message[:500])
            raise problem

    async def give_back(self, uid: str) -> None:
        """What is not held is success. Raises Problem, DatabaseError or OSError."""
        require_uid(uid)
        await self._turns.once(uid, "give back", lambda: self._give_back(uid))

    async def _give_back(self, uid: str) -> None:
        record = self._known.get(uid)
        await asyncio.to_thread(self._outfitter.remove, uid)
        if record is None:
            self._holders.free(uid)
            return
        how = await self._pods.wait_for_end(record.namespace, list(recalled(record.pods)))
        ended = self._engine.given_back(record.id, clock.wall(), how.exit_code, how.reason)
        if self._containers.find(record.id) is None:  # it never came so far, or has ended already
            await self._call_off(uid, NEVER)
            return
        self._containers.apply_status(ended)
        await self._store.durable()
        await self._forget(uid)

    async def end_pods(self, id_: str, grace: float) -> None:
        """Those with this container's claim, by our id. Raises EngineError."""
        record = next((each for each in self._known.values() if each.id == id_), None)
        if record is None:
            return
        try:
            meant = await self._meant(record)
            await self._pods.end(record.namespace, meant, grace)
        except CannotEnd as error:
            raise EngineError(str(error), code="cannot_end") from None
        except ApiError as error:
            raise EngineAway(str(error)) from None
        if not meant:
            raise EngineError(
                "The cluster has no pod with its claim: it ends when its kubelet gives it back, or when no program has "
                "its socket any more.", code="no_pod"
            )  # fmt: skip

    async def _meant(self, record: Record) -> list[tuple[str, str]]:
        """Name and uid of each pod that has what the record is about, as the cluster has it now. Raises ApiError."""
        if record.units:
            return [(each["name"], each["uid"]) for each in record.pods]
        try:
            claim = await self._read(Asked(record.namespace, record.name, record.uid))
        except Problem:
            return []  # nobody has it any more; nor can it be given to anybody
        return reserved(claim) if claim["metadata"]["uid"] == record.uid else []

    def require_within(self, id_: str, size: int) -> None:
        """A quota may be less than what the cluster has taken off the card for it, and not more. Raises Problem."""
        record = next((each for each in self._known.values() if each.id == id_), None)
        given = Allocated(record.namespace, record.name, record.uid, record.parts).quotas() if record else {}
        if record and size > (least := min(given.values())):
            raise Problem(
                "over_claim",
                f"The cluster has taken {format_size(least)} of the card for the claim "
                f"{record.namespace}/{record.name}, and that cannot be changed while it lives: up to that.",
                409, "gpu_memory",
            )  # fmt: skip

    # ---- what a claim may have ----

    async def _read(self, asked: Asked) -> Mapping[str, Any]:
        try:
            path = path_of(RESOURCES, "namespaces", asked.namespace, "resourceclaims", asked.name)
            return await self._pods.api.get(path)
        except ApiError as error:
            if error.status == 404:
                raise Problem("deleted", "It was deleted while it was to be prepared.", 404) from None
            raise

    def _quotas(self, allocated: Allocated) -> dict[str, int]:
        """Bytes by GPU. Raises Problem."""
        quotas = {}
        for device, memory in allocated.quotas().items():
            card = self._devices.get(device)
            if card is None:
                raise Problem("no_such_gpu", f"This node has no card {device}, or not any more.", 409)
            if memory > self._cards[card]:
                had = f"{format_size(memory)} of {device} were given to it, which has {format_size(self._cards[card])}."
                raise Problem("over_capacity", f"{had} Delete the pod: the cluster's scheduler places it anew.", 409)
            quotas[card] = memory
        return quotas

    def _require_room(self, uid: str, quotas: Mapping[str, int]) -> None:
        """No card is promised over its memory, whatever a cluster says. Raises Problem."""
        for card, memory in quotas.items():
            held = sum(each.quota.get(card, 0) for each in self._containers.all() if not each.finished)
            held += sum(each.get(card, 0) for other, each in self._coming.items() if other != uid)
            if held + memory > self._cards[card]:
                raise Problem(
                    "promised",
                    f"{format_size(memory)} of {device_name(card)} are more than is left: {format_size(held)} of "
                    f"{format_size(self._cards[card])} are promised to others. It is tried again when they end.",
                    409,
                )

    # ---- what nobody gives back ----

    async def look_at_claims(self, after: float = FORGOTTEN_AFTER) -> None:
        """Gives back what no cluster knows any more and no program uses, and sees what pods the others have.

        Not those of the last `after` seconds.
        """
        for record in list(self._known.values()):
            if record.units or clock.wall() - record.at < after:
                continue
            try:
                if not await self._is_forgotten(record):
                    continue
                log.warning("container %s: its claim is not in the cluster any more; it is given back", ById(record.id))
                await self.give_back(record.uid)
            except Exception as error:  # that of one is no reason not to look at the others
                log.debug("container %s: its claim is looked at later: %s", ById(record.id), in_words(error))

    async def _is_forgotten(self, record: Record) -> bool:
        try:
            claim = await self._read(Asked(record.namespace, record.name, record.uid))
            await self._see_pods(record, claim)
            there = claims.allocated(claim, record.uid, self.pool)
            if there.quotas() == Allocated(record.namespace, record.name, record.uid, record.parts).quotas():
                return False
        except Problem as problem:
            if problem.code not in ("deleted", "not_allocated", "not_ours", "elsewhere"):
                return False
        return record.id not in await asyncio.to_thread(self._engine.in_use)

    async def _see_pods(self, record: Record, claim: Mapping[str, Any]) -> None:
        """One that came later has no call of its own: its kubelet knows the claim to be prepared."""
        if claim["metadata"]["uid"] != record.uid or not (found := await self._pods.of(claim)):
            return
        if (shown := [pod.as_dict() for pod in found]) != list(record.pods):
            await self._turns.next(record.uid, lambda: self._show_pods(record.uid, shown))

    async def _show_pods(self, uid: str, shown: Sequence[Mapping[str, Any]]) -> None:
        if record := self._known.get(uid):  # it was not given back meanwhile
            await self._keep(replace(record, pods=shown))
            self._store.container(record.id, pods=shown)

    # ---- helpers ----

    def fault(self, asked: Asked, error: Exception) -> str:
        """What the kubelet shows in the pod's events."""
        return f"gpushare: the claim {asked.namespace}/{asked.name}: {in_words(error)}"

    def _cards_of(self, record: Record) -> Mapping[str, tuple[str, int]]:
        quotas = Allocated(record.namespace, record.name, record.uid, record.parts).quotas()
        if gone := [device for device in quotas if device not in self._devices]:
            raise Problem("no_such_gpu", f"This node does not have {gone[0]} any more.", 409)
        return {device: (self._devices[device], memory) for device, memory in quotas.items()}

    def _lives(self, id_: str) -> bool:
        live = self._containers.find(id_)
        return live is not None and not live.finished
