"""Which GPUs a container gets when it does not name them: those with the most memory that nobody was promised."""

from __future__ import annotations

from .core.state import State


def choose(state: State, count: int, quota: int) -> list[str]:
    """`count` GPUs that could ever give `quota`; fewer if there are no more such."""
    able = [gpu for gpu in state.gpus.values() if quota <= gpu.most]
    promised = {gpu.uuid: sum(state.containers[name].quota[gpu.uuid] for name in gpu.members) for gpu in able}
    # What is left may be negative: quotas together may exceed a card, that is the point of suspending.
    able.sort(key=lambda gpu: (promised[gpu.uuid] - gpu.capacity, gpu.uuid))
    return [gpu.uuid for gpu in able[:count]]
