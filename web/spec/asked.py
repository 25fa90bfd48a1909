"""Between a launch and its record. Which fields there are follows from `LaunchSpec`."""

from __future__ import annotations

from typing import Any

from web.models import Container
from web.spec.requests import LaunchSpec

FIELDS: dict[str, Any] = dict(LaunchSpec().fields.items())
PRIVATE = ("command", "env")  # they may hold secrets: for who may steer the container
# Kept as they are, in columns of the same name. The others: a name may be made up, GPUs and a node may be chosen.
COLUMNS = tuple(name for name in FIELDS if name not in ("name", "env", "gpus", "node"))


def asked_for(container: Container, private: bool) -> dict[str, Any]:
    """The launch that would make this container again, by field. Not its name: that belongs to one that lives."""
    asked = {name: getattr(container, name) for name in COLUMNS}
    asked |= {
        "env": container.environment,
        "gpus": container.gpu_uuids or container.gpu_count,
        "node": container.node_asked,
    }
    return {name: asked[name] for name in FIELDS if name in asked and (private or name not in PRIVATE)}
