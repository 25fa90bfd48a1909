"""A reservation whose way host memory has no room to clear is refused when it is made."""

import pytest
from django.utils import timezone

from tests.support.machine import GIB, make_container
from tests.support.people import make_user
from tests.web.test_reservations import body


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("budget", "out", "how", "asked", "status"),
    [
        (None, 0, {}, {}, 201),  # a scheduler that has not said what it has
        (4 * GIB, 0, {}, {}, 201),
        (2 * GIB, 0, {}, {}, 409),
        (4 * GIB, 2 * GIB, {}, {}, 409),
        (2 * GIB, 0, {"ttl_seconds": 60}, {}, 201),
        (2 * GIB, 0, {}, {"if_short": "end"}, 201),
        (2 * GIB, 0, {}, {"gpu_memory": "2GiB"}, 201),  # it fits beside them
    ],
)
def test_who_would_have_to_give_way_fits_into_host_memory_or_it_is_refused(
    ada, client, gpu, budget, out, how, asked, status
):
    bob = make_user("bob")
    train = make_container(bob, "train", gpu, quota=3 * GIB, node=gpu.node, **how)
    train.claims.update(granted=3 * GIB, used=2 * GIB)
    if out:
        away = make_container(bob, "away", gpu, node=gpu.node, swapped_at=timezone.now(), swapped=out)
        away.claims.update(granted=0, used=0)
    gpu.node.figures = {"swap_memory": budget} if budget else {}
    gpu.node.save()
    answer = client.post("/api/v1/reservations/", body(**{"gpu_memory": "4GiB", **asked}))
    assert answer.status_code == status, answer.json()
    if status == 409:
        message = answer.json()["error"]["message"]
        assert "2 GiB of GPU 0 of host would have to move to host memory, which has 2 GiB for that." in message
