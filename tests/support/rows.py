"""Rows as the scheduler would write them, for pages that are looked at without one."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import F
from django.utils import timezone

from scheduler.core import policies
from web.models import Claim, Container, Gpu, Node

GIB = 2**30


def ago(seconds: float):
    return timezone.now() - timedelta(seconds=seconds)


def node(**fields: Any) -> Node:
    defaults = {
        "engine": "process",
        "policy": "fair",
        "policies": policies.described(),
        "simulated": True,
        "seen_at": timezone.now() + timedelta(hours=1),
    }
    return Node.objects.update_or_create(name=settings.GPUSHARE_NODE, defaults=defaults | fields)[0]


def gpu(index: int = 0, total: int = 5 * GIB, **fields: Any) -> Gpu:
    defaults = {"node": node(), "index": index, "name": "Simulated card", "simulated": True, "total": total,
                "capacity": total, "most": total, "free": total, "context": 66 * 2**20, "utilisation": 40,
                "temperature": 51, "power": 120.0}  # fmt: skip
    return Gpu.objects.update_or_create(uuid=f"GPU-sim-{index}", defaults=defaults | fields)[0]


def container(name: str, owner: User, on: Gpu, quota: float = 1, used: float = 0, granted: float | None = None,
              peak: float | None = None, **fields: Any) -> Container:  # fmt: skip
    """A container and its claim; sizes in GiB. Running unless `fields` say otherwise."""
    in_hand = int((used if granted is None else granted) * GIB)
    idle = in_hand - int(used * GIB)
    Gpu.objects.filter(pk=on.pk).update(free=F("free") - in_hand, idle=F("idle") + idle)
    made = Container.objects.create(
        name=name, owner=owner, node=on.node, engine="process", engine_id=name,
        **{"image": "local", "gpu_memory": int(quota * GIB), "started_at": ago(60)} | fields,
    )  # fmt: skip
    Claim.objects.create(
        container=made, gpu=on, quota=int(quota * GIB), used=int(used * GIB),
        granted=in_hand, peak=int((used if peak is None else peak) * GIB),
        overhead=66 * 2**20, waiting=int(quota * GIB) if fields.get("suspended_since") else 0,
    )  # fmt: skip
    return made
