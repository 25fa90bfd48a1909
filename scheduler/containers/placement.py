"""Which GPUs a container gets when it does not name them: those with the most memory that nobody was promised."""

from __future__ import annotations

from scheduler.core.state import State
from web.errors import Problem
from web.sizes import format_size


def choose(state: State, count: int, quota: int) -> list[str]:
    """`count` GPUs that could ever give `quota`. Problem `over_capacity` if there are not so many."""
    able = [gpu for gpu in state.gpus.values() if quota <= gpu.most]
    if len(able) < count:
        most = max((gpu.most for gpu in state.gpus.values()), default=0)
        message = (
            f"{format_size(quota)} on {count} GPU{'s' * (count > 1)}: only {len(able)} of {len(state.gpus)} can ever "
            f"give that; the most that one can is {format_size(most)}."
        )
        raise Problem("over_capacity", message, 400, "gpu_memory")
    promised = {gpu.uuid: sum(state.containers[name].quota[gpu.uuid] for name in gpu.members) for gpu in able}
    # What is left may be negative: quotas together may exceed a card, that is the point of suspending.
    able.sort(key=lambda gpu: (promised[gpu.uuid] - gpu.capacity, gpu.uuid))
    return [gpu.uuid for gpu in able[:count]]
