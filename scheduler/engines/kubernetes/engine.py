"""Kubernetes as an engine: a container is a claim that the kubelet has had prepared, until it has it given back.

What runs is the kubelet's and its runtime's business. This engine starts and ends nothing; it knows which claims there
are, because the driver (scheduler/kubernetes) tells it, and whose a process is, because the kernel shows which socket
folder was mounted for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path

from scheduler.engines.base import Attached, Condition, EngineError, Exec, Executed, Launch, Progress, Sighting, Use
from scheduler.engines.changes import Changes
from scheduler.engines.docker.mounting.runs import folder_of
from scheduler.engines.outfit import Outfit

GIVEN_BACK = "Kubernetes has given it back; how its programs ended, kubectl tells."


class KubernetesEngine:
    """A claim's engine id is our id of its container."""

    name = "kubernetes"
    in_swarm = False
    mountings = None
    placer = None  # the cluster's scheduler has placed whatever comes here
    away = ""
    outdated: Sequence[str] = ()
    folder: Path | None = None

    def __init__(self, outfit: Outfit) -> None:
        self.outfit = outfit
        self._changes = Changes()

    # ---- what the driver tells ----

    def prepared(self, id_: str, at: float) -> None:
        """The kubelet may start programs with it from now on. `at`: seconds since the epoch."""
        self._changes.see(Sighting(id_, id_, Condition.RUNNING, started_at=at))

    def given_back(self, id_: str, at: float) -> Sighting:
        """It has ended: what to tell of it, now, and not when the stream comes to it."""
        began = self._changes.last(id_)
        ended = Sighting(id_, id_, Condition.ENDED, 0, began.started_at if began else at, at, GIVEN_BACK)
        self._changes.gone_from_engine(id_)
        return ended

    # ---- Engine ----

    async def start(self) -> None: ...

    async def close(self) -> None:
        self._changes.close()

    async def image_labels(self, image: str, progress: Progress | None = None) -> Mapping[str, str]:
        return {}

    async def launch(self, launch: Launch, progress: Progress | None = None) -> Sighting:
        raise _by_kubectl("Pods are started", "a ResourceClaim with the quota")

    async def attach(self, engine_id: str) -> Attached:
        raise _by_kubectl("The keyboard of a pod is reached", "kubectl attach")

    async def exec(self, engine_id: str, asked: Exec) -> Executed:
        raise _by_kubectl("Programs are started in a pod", "kubectl exec")

    async def pause(self, engine_id: str) -> None:
        raise _by_kubectl("A pod cannot be paused, but ended", "kubectl delete pod")

    async def resume(self, engine_id: str) -> None:
        raise _by_kubectl("A pod is not paused from here. It is ended", "kubectl delete pod")

    async def kill(self, engine_id: str, *, grace: float = 0.0) -> None:
        raise _by_kubectl("Pods are ended", "kubectl delete pod")

    async def add_memory(self, engine_id: str, extra: int) -> None:
        raise EngineError(
            "A pod's limit of host memory cannot be raised from here, and its VRAM would count as its own there.",
            code="not_supported",
        )

    def memory_left(self) -> int | None:
        return None

    def uses(self, engine_ids: Iterable[str]) -> dict[str, Use]:
        return {}

    async def remove(self, engine_id: str) -> None:
        """Nothing is kept of what has ended."""

    async def sightings(self) -> list[Sighting]:
        return self._changes.known()

    def changes(self) -> AsyncIterator[Sighting]:
        return self._changes.stream()

    def untold(self) -> list[Sighting]:
        return self._changes.untold()

    def owns(self, engine_id: str, pid: int) -> bool:
        return folder_of(pid) == engine_id


def _by_kubectl(what: str, how: str) -> EngineError:
    return EngineError(f"{what} by Kubernetes: {how}.", code="not_supported", status=400)
