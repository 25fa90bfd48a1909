"""Kubernetes as an engine: a container is a claim that the kubelet has had prepared, until it has it given back.

What runs is the kubelet's and its runtime's business. This engine starts nothing; it knows which claims there are,
because the driver (scheduler/kubernetes) tells it, and whose a process is, because the kernel shows which socket folder
was mounted for it. It pauses them by their control groups, and has the cluster end their pods.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from scheduler.engines.base import Attached, Condition, EngineError, Exec, Executed, Launch, Progress, Status, Use
from scheduler.engines.changes import Changes
from scheduler.engines.docker.mounting.runs import folder_of, place_of
from scheduler.engines.runtime_environment import RuntimeEnvironment
from scheduler.kubernetes.freezer import Freezer
from scheduler.parts import is_set_within

MEMORY_STAYS = "Memory of a pod stays on its card: in host memory it would count as the pod's own."
UNKNOWN = "Kubernetes has released it; kubectl shows how its programs ended."


class Claims(Protocol):
    """The driver. `end_pods` has a claim's pods end, with a grace in seconds; a quota beyond a claim is a Problem."""

    async def end_pods(self, id_: str, grace: float) -> None: ...
    def require_within(self, id_: str, size: int) -> None: ...


class KubernetesEngine:
    """A claim's engine id is our id of its container."""

    name = "kubernetes"
    in_swarm = False
    mountings = None
    placer = None  # the cluster's scheduler has placed whatever comes here
    away = ""
    outdated: Sequence[str] = ()
    folder: Path | None = None
    memory_stays = MEMORY_STAYS

    def __init__(self, runtime_environment: RuntimeEnvironment) -> None:
        self.runtime_environment = runtime_environment
        self._changes = Changes()
        self._freezer = Freezer()
        self._ends: dict[str, asyncio.Event] = {}

    # ---- what the driver tells ----

    def meet(self, claims: Claims, sockets: Path) -> None:
        """Before anything else. `sockets`: where their folders are."""
        self._claims, self._place = claims, place_of(sockets)

    def prepared(self, id_: str, at: float, *, paused: bool = False) -> None:
        """The kubelet may start programs with it from now on. `at`: seconds since the epoch."""
        self._ends.setdefault(id_, asyncio.Event())
        self._changes.see(Status(id_, id_, Condition.PAUSED if paused else Condition.RUNNING, started_at=at))

    def lost(self, id_: str, reason: str) -> None:
        """It was prepared by an earlier driver, and nobody knows what for."""
        self._changes.see(Status(id_, id_, Condition.RUNNING))
        self._changes.see(Status(id_, id_, Condition.GONE, reason=reason))

    def knows(self, id_: str) -> bool:
        """Whether it is prepared, and not given back."""
        return self._changes.last(id_) is not None

    def given_back(self, id_: str, at: float, exit_code: int | None, reason: str) -> Status:
        """It has ended: what to tell of it, now, and not when the stream comes to it."""
        began = self._changes.last(id_)
        ended = Status(id_, id_, Condition.ENDED, exit_code, began.started_at if began else at, at, reason)
        self._changes.gone_from_engine(id_)
        if end := self._ends.pop(id_, None):
            end.set()
        return ended

    def frozen(self, ids: Iterable[str]) -> set[str]:
        """Blocking. Those of which something is stopped."""
        pids = self._programs()
        return {id_ for id_ in ids if self._freezer.any_stopped(pids.get(id_, ()))}

    def in_use(self) -> set[str]:
        """Blocking. By our id, those of which some process sees the socket folder."""
        return set(self._programs())

    async def look_at_paused(self) -> None:
        """Whoever else lets one go on, or starts it anew, is seen."""
        paused = {each.id: each for each in self._changes.known() if each.condition is Condition.PAUSED}
        if not paused:
            return
        frozen = await asyncio.to_thread(self.frozen, list(paused))
        for id_, status in paused.items():
            if id_ not in frozen and self._changes.last(id_) is status:  # nothing was reported of it meanwhile
                self._changes.see(replace(status, condition=Condition.RUNNING))

    # ---- Engine ----

    async def start(self) -> None: ...

    async def close(self) -> None:
        self._changes.close()

    async def image_labels(self, image: str, progress: Progress | None = None) -> Mapping[str, str]:
        return {}

    async def launch(self, launch: Launch, progress: Progress | None = None) -> Status:
        raise _by_kubectl("Pods are started", "a ResourceClaim with the quota")

    async def attach(self, engine_id: str) -> Attached:
        raise _by_kubectl("The keyboard of a pod is reached", "kubectl attach")

    async def exec(self, engine_id: str, asked: Exec) -> Executed:
        raise _by_kubectl("Programs are started in a pod", "kubectl exec")

    async def pause(self, engine_id: str) -> None:
        pids = (await asyncio.to_thread(self._programs)).get(engine_id)
        if not pids:
            raise EngineError("None of its programs runs now: there is nothing to pause.", code="not_running")
        await asyncio.to_thread(self._freezer.freeze, pids, lambda pid: self.owns(engine_id, pid))
        self._see(engine_id, Condition.PAUSED)

    async def resume(self, engine_id: str) -> None:
        await asyncio.to_thread(self._thaw, engine_id)
        self._see(engine_id, Condition.RUNNING)

    async def kill(self, engine_id: str, *, grace: float = 0.0) -> None:
        """Has the cluster end its pods, which end with their kubelet's next word; waits for that up to `grace`."""
        ended = self._ends.get(engine_id)
        if ended is None:
            return
        await self._claims.end_pods(engine_id, grace)
        with contextlib.suppress(EngineError):  # version 1 of control groups ends nobody who is frozen
            await asyncio.to_thread(self._thaw, engine_id)
        await is_set_within(ended, grace)

    async def add_memory(self, engine_id: str, extra: int) -> None:
        raise EngineError(MEMORY_STAYS, code="not_supported")

    async def give_card(self, engine_id: str, gpu: str) -> None:
        raise EngineError(MEMORY_STAYS, code="not_supported")

    async def take_card(self, engine_id: str, gpu: str) -> None: ...

    def require_within(self, id_: str, size: int) -> None:
        self._claims.require_within(id_, size)

    def memory_left(self) -> int | None:
        return None

    def uses(self, engine_ids: Iterable[str]) -> dict[str, Use]:
        return {}

    async def remove(self, engine_id: str) -> None:
        """Nothing is kept of what has ended."""

    async def statuses(self) -> list[Status]:
        return self._changes.known()

    def changes(self) -> AsyncIterator[Status]:
        return self._changes.stream()

    def drain(self) -> list[Status]:
        return self._changes.drain()

    async def first_pid(self, engine_id: str) -> int:
        return next(iter((await asyncio.to_thread(self._programs)).get(engine_id, ())), 0)

    def owns(self, engine_id: str, pid: int) -> bool:
        """By the folder that it sees, and not by what that is called: any program may mount one of that name."""
        return folder_of(pid, self._place) == engine_id

    def _see(self, id_: str, condition: Condition) -> None:
        if (last := self._changes.last(id_)) is not None:
            self._changes.see(replace(last, condition=condition))

    def _thaw(self, engine_id: str) -> None:
        self._freezer.thaw(self._programs().get(engine_id, ()))

    def _programs(self) -> dict[str, list[int]]:
        """Blocking. By our id, the processes that see its socket folder."""
        found: dict[str, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdecimal() and (id_ := folder_of(int(name), self._place)):
                found.setdefault(id_, []).append(int(name))
        return found


def _by_kubectl(what: str, how: str) -> EngineError:
    return EngineError(f"{what} by Kubernetes: {how}.", code="not_supported", status=400)
