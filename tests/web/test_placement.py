"""A launch under an allowance that names GPUs gets the one that the scheduler would take."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from scheduler.containers import placement
from scheduler.core.events import ContainerAdded, GpuSeen, ReservesChanged
from scheduler.core.state import Reserve
from tests.support.machine import GIB, make_container, make_gpu
from tests.support.people import make_user
from tests.support.world import World
from web.models import Allowance, Gpu, Reservation
from web.services import steering

HOUR = 3600


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


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("owner", "limit", "chosen"),
    [("ada", None, "GPU-1"), ("ada", 4 * HOUR, "GPU-1"), ("ada", HOUR, "GPU-0"), ("bob", None, "GPU-0")],
)
def test_both_leave_a_card_that_is_reserved_for_others_within_the_time_limit(node, owner, limit, chosen) -> None:
    """GPU-0 has more room, and is reserved for bob in two hours."""
    world, user = World(), make_user(owner)
    bob, _ = User.objects.get_or_create(username="bob")
    for index, capacity in enumerate((10, 8)):
        world.do(GpuSeen(0, make_gpu(node, index, capacity=capacity * GIB).uuid, capacity * GIB))
    begins, until = timezone.now() + timedelta(hours=2), timezone.now() + timedelta(hours=3)
    kept = Reservation.objects.create(user=bob, starts=f"{begins:%Y-%m-%dT%H:%M}", zone="UTC", minutes=60,
                                      gpu_memory=4 * GIB, over_at=until, made_by="bob")  # fmt: skip
    kept.cards.create(gpu=Gpu.objects.get(uuid="GPU-0"))
    world.do(ReservesChanged(0, (Reserve("r", "GPU-0", 4 * GIB, frozenset({"bob"}), 2.0 * HOUR, 3.0 * HOUR),)))
    Allowance.objects.create(user=user, gpus=["GPU-0", "GPU-1"])
    launched = steering.launch(user, {"image": "local", "gpu_memory": 2 * GIB, "ttl_seconds": limit}).container
    assert placement.choose(world.state, 1, 2 * GIB, owner=owner, lasts=limit) == launched.gpu_uuids == [chosen]
