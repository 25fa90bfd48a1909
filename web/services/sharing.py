"""Whether a container's compute weight and limit are kept: THE rule for answers, pages and Attention."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from web.errors import conflict
from web.models.hosts import Compute
from web.models.records import USUAL_WEIGHT
from web.spec.several_hosts import ELSEWHERE

PRICE = (
    "Movable: NCCL's ranks on several GPUs then work without peer access, at 96% of the speed measured "
    "(two H100, data-parallel training)."
)


def not_kept(container: Any, cards: Sequence[Any] | None = None) -> str:
    """Why its compute weight or limit is not kept, as a sentence; empty: it is, or none was asked for.

    A record, or what has its fields; of a record the GPUs, `cards`, can be read.
    """
    asked = _asked(container)
    if not asked or container.finished_at is not None:
        return ""
    gpus = [claim.gpu for claim in container.claims.all()] if cards is None else cards
    shared = next((gpu for gpu in gpus if gpu.compute != Compute.TURNS), None)
    if shared is not None:
        why = f" {shared.compute_why}" if shared.compute_why else ""
        return f"{asked} not kept: containers on GPU {shared.index} compute at once, without turns.{why}"
    if container.no_turns:
        return f"{asked} not kept: the container could not be stopped for others. {container.no_turns}"
    return ""


def _asked(container: Any) -> str:
    asked = ["limit"] * (container.compute_limit is not None) + ["weight"] * (container.compute_weight != USUAL_WEIGHT)
    return f"Its compute {' and '.join(asked)} {'are' if len(asked) > 1 else 'is'}" if asked else ""


def price(movable: bool, gpus: int) -> str:
    """What being movable costs, where it costs anything."""
    return PRICE if movable and gpus > 1 else ""


def require_stoppable(container: Any, limit: int | None) -> None:
    """Raises Problem for a limit that cannot be kept, as is known of a container whose ranks are on several hosts."""
    if limit is not None and ELSEWHERE in container.no_turns:
        raise conflict(f"A GPU time limit cannot be kept. {container.no_turns}", code="cannot_limit")


def ranks(claims: Iterable[tuple[str, Iterable[Mapping[str, Any]]]]) -> list[dict[str, Any]]:
    """Of (GPU, its processes): ranks of NCCL, in order, each on the GPU that its process uses most.

    A process with several of them, as JAX has, is taken to have them on its GPUs in this order.
    """
    there: dict[int, list[tuple[str, Mapping[str, Any]]]] = {}
    for gpu, processes in claims:
        for process in processes:
            if process["used"] and process.get("ranks"):
                there.setdefault(process["pid"], []).append((gpu, process))
    found = []
    for pid, its in there.items():
        numbers, of = its[0][1]["ranks"], its[0][1]["of"]
        least = sorted((process["used"] for _, process in its), reverse=True)[: len(numbers)][-1]
        gpus = cycle(gpu for gpu, process in its if process["used"] >= least)
        found += [{"rank": rank, "of": of, "pid": pid, "gpu": gpu} for rank, gpu in zip(numbers, gpus, strict=False)]
    return sorted(found, key=lambda each: (each["rank"], each["gpu"]))
