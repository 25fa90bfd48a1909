"""A launch under an allowance that names GPUs gets the one that the scheduler would take."""

from __future__ import annotations

import pytest

from scheduler.containers import placement
from scheduler.core.events import ContainerAdded, GpuSeen
from tests.support.machine import GIB, make_container, make_gpu
from tests.support.world import World
from web.models import Allowance
from web.services import steering


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("cards", "quotas", "chosen"),
    [
        ([(80, 60), (10, 1)], 2, "GPU-0"),  # most is left, though the larger part is promised
        ([(10, 10), (10, 4)], 2, "GPU-1"),
        ([(10, 5), (10, 5)], 2, "GPU-0"),
        ([(4, 0), (10, 9)], 6, "GPU-1"),
    ],
)
def test_the_scheduler_and_a_launch_under_an_allowance_take_the_same_gpu(ada, node, cards, quotas, chosen) -> None:
    world = World()
    for index, (capacity, promised) in enumerate(cards):
        card = make_gpu(node, index, capacity=capacity * GIB)
        world.do(GpuSeen(0, card.uuid, capacity * GIB))
        if promised:
            make_container(ada, f"c{index}", card, quota=promised * GIB)
            world.do(ContainerAdded(0, f"c{index}", {card.uuid: promised * GIB}))
    Allowance.objects.create(user=ada, gpus=[f"GPU-{index}" for index in range(len(cards))])
    launched = steering.launch(ada, {"image": "local", "gpu_memory": quotas * GIB}).container
    assert placement.choose(world.state, 1, quotas * GIB) == launched.gpu_uuids == [chosen]
