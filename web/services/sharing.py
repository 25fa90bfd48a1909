"""Whether a container's compute weight and limit are kept: THE rule for answers, pages and Attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from web.models.hosts import Compute
from web.models.records import USUAL_WEIGHT


def not_kept(container: Any, cards: Sequence[Any] | None = None, *, just_asked: bool = False) -> str:
    """Why its compute weight or limit is not kept, as a sentence; empty: it is, or none was asked for.

    `just_asked`: also what may keep it from being kept, which shows only when the container computes. A record, or what
    has its fields; of a record the GPUs, `cards`, can be read.
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
    if just_asked and len(gpus) > 1:
        return (
            f"{asked} not kept while its processes wait for each other on several GPUs, as NCCL's do: "
            "they cannot be stopped one by one."
        )
    return ""


def _asked(container: Any) -> str:
    asked = ["limit"] * (container.compute_limit is not None) + ["weight"] * (container.compute_weight != USUAL_WEIGHT)
    return f"Its compute {' and '.join(asked)} {'are' if len(asked) > 1 else 'is'}" if asked else ""
