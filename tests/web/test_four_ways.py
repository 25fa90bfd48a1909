"""Four ways to a container: each gives the same answer to the same wish, allowed or refused with the same sentence."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import GIB, make_container, make_gpu
from web.errors import Problem
from web.models import Allowance, AuditEntry, Claim, Container, Gpu, Node
from web.people import allowances
from web.services import claiming, mounting, steering
from web.services.claiming import Claimed
from web.services.mounting import Mounting
from web.services.placement import accept_placement
from web.services.placement.placement_ticket import PlacementTicket
from web.spec.requests import LaunchSpec

pytestmark = pytest.mark.django_db
CARD = "GPU-0"
WISH: dict[str, Any] = {"image": "lab/train", "gpu_memory": GIB, "gpus": [CARD], "name": "wished"}


@pytest.fixture(autouse=True)
def machine(node: Node, settings: Any) -> None:
    """Two cards, and everybody may come by each way."""
    make_gpu(node, 0), make_gpu(node, 1)
    settings.GPUSHARE_PLUGIN_PEOPLE, settings.GPUSHARE_KUBERNETES_PEOPLE = ["ada"], {"*": "ada"}


def launch(ada: User, node: Node, wish: dict[str, Any]) -> Container:
    made = steering.launch(ada, wish).container
    assert made is not None
    return made


def mounted_volume(ada: User, node: Node, wish: dict[str, Any]) -> Container:
    options = {field: str(wish[field]) for field in wish.keys() - {"image", "gpus", "name"}}
    mounting_ = Mounting(uuid4(), "m", "wished", wish["image"], (), wish["gpu_memory"], wish["gpus"])
    return mounting.mount(node.pk, "v", {**options, "gpus": CARD}, mounting_)


def kubernetes_claim(ada: User, node: Node, wish: dict[str, Any]) -> Container:
    quotas = dict.fromkeys(wish["gpus"], wish["gpu_memory"])
    claimed = Claimed(uuid4(), "uid", "", "wished", quotas, LaunchSpec.parse(wish), images=[wish["image"]])
    return claiming.claim(node.pk, claimed)


def repeated_run(ada: User, node: Node, wish: dict[str, Any]) -> Container:
    now, fields = timezone.now(), {name: wish[name] for name in wish.keys() - {"gpus"}}
    ended = {"started_at": now, "finished_at": now, "restart": "always", "handed": "key"}
    first = Container.objects.create(owner=ada, node=node, gpu_uuids=wish["gpus"], **{**fields, **ended})
    return accept_placement.accept(node.pk, "v", "m", PlacementTicket(first.pk, wish["gpu_memory"], (0,), "key"))


every_way = pytest.mark.parametrize("way", [launch, mounted_volume, kubernetes_claim, repeated_run])
Way = Callable[[User, Node, dict[str, Any]], Container]


@pytest.mark.parametrize(
    ("allowance", "wish", "sentence"),
    [
        ({"gib_hours": 2}, {}, "You held 3.0 GiB·hours in the last seven days, and may hold 2."),
        ({"images": ["docs/*"]}, {}, "You may not launch lab/train: only docs/*."),
        ({"gpus": ["GPU-1"]}, {}, "You may not use GPU GPU-0."),
        ({"priority_highest": 0}, {"priority": 1}, "Your priority may be at most 0."),
        ({"priority_lowest": 0}, {"priority": -1}, "Your priority may be at least 0."),
        ({"containers": 1}, {}, "Your limit of live containers is 1; you have 1."),
        (
            {"gpu_memory": 2 * GIB},
            {},
            "This quota is 1 GiB; your other quotas are 1.5 GiB together, and the limit for all is 2 GiB.",
        ),
        ({"compute_weight": 50}, {"compute_weight": 60}, "The weight of your containers may be at most 50."),
        (
            {"compute_limit": 50},
            {"compute_limit": 60},
            "The GPU time limit of your containers may be at most 50 %.",
        ),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
@every_way
def test_what_is_beyond_the_allowance_is_refused_in_the_same_words_and_recorded(
    ada: User, node: Node, way: Way, allowance: dict[str, Any], wish: dict[str, Any], sentence: str
) -> None:
    Allowance.objects.create(user=ada, **allowance)
    other = make_container(ada, "other", Gpu.objects.get(uuid="GPU-1"), quota=3 * GIB // 2)
    append(
        other, timezone.now() - timedelta(hours=3), EventKind.ACCEPTED, Gpu.objects.get(uuid="GPU-1"), used_after=GIB
    )
    with pytest.raises(Problem) as caught:
        way(ada, node, {**WISH, **wish})
    problem = caught.value
    # A claim's refusal is read by others than its owner, so it says who is meant.
    message = problem.message.removeprefix('For its owner here, "ada": ')
    assert (problem.code, problem.status, message) == ("over_allowance", 403, sentence)
    assert list(Container.objects.live()) == [other]
    assert Claim.objects.count() == 1


@every_way
@pytest.mark.parametrize(
    ("lowered", "sentence"),
    [({"gpu_memory": GIB // 2}, "quotas together may be at most 512 MiB"), ({"gib_hours": 0}, "and may hold 0")],
    ids=["gpu_memory", "gib_hours"],
)
def test_an_allowance_lowered_while_the_owner_is_waited_for_counts(
    ada: User, node: Node, way: Way, monkeypatch: pytest.MonkeyPatch, lowered: dict[str, Any], sentence: str
) -> None:
    hold = allowances.hold

    def waits(user: User) -> None:
        Allowance.objects.update_or_create(user=user, defaults=lowered)
        hold(user)

    monkeypatch.setattr(allowances, "hold", waits)
    with pytest.raises(Problem, match=sentence):
        way(ada, node, WISH)


@every_way
def test_what_is_allowed_is_recorded_with_its_share_and_its_name(ada: User, node: Node, way: Way) -> None:
    Allowance.objects.create(
        user=ada, gib_hours=9, images=["lab/*"], gpus=[CARD], priority_lowest=0, containers=1, gpu_memory=GIB,
        compute_weight=40, compute_limit=70,
    )  # fmt: skip
    made = way(ada, node, {**WISH, "compute_weight": 40})
    made.refresh_from_db()
    assert (made.owner, made.node, made.name, made.image, made.gpu_count) == (ada, node, "wished", "lab/train", 1)
    assert (made.compute_weight, made.compute_limit) == (40, 70), "the limit is the allowance's"
    # A launch's quota is promised by its node's scheduler; the others' have been promised to somebody else already.
    assert [claim.quota for claim in made.claims.all()] == [GIB] * (way is not launch)
    detail = AuditEntry.objects.get(subject=str(made.pk)).detail
    assert (detail["name"], detail["compute_weight"], detail["compute_limit"]) == ("wished", 40, 70)
