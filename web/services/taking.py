"""Taking over what a placer has brought to a host: the record is there already, and the first host to ask has it.

Asked by a scheduler when Docker mounts the volume. A Swarm may begin one job twice (moby/moby#53632: once for each
manager that has led), on this node or another: the second is refused, so it never starts.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q

from web import audit
from web.errors import Problem, conflict
from web.models import Claim, Container, Gpu, Node
from web.models.records import FOR_A_NODE
from web.people import allowances
from web.services import runs
from web.sizes import format_size
from web.spec.handed import Handed

ACTOR = "docker"


def require(handed: Handed) -> None:
    """Refuses a volume whose container nobody has launched, or has called off. Raises Problem."""
    _ = runs.begun(handed) or _found(handed)


def take(node: int, volume: str, mount: str, handed: Handed) -> Container:
    """Its record, with its claims on cards of this node. The same mount again is the same. Raises Problem."""
    with transaction.atomic():
        its = Container.objects.live().whole().filter(Q(pk=handed.container) | Q(run_of=handed.container))
        if same := its.filter(node=node, mount=mount).first():
            return same
        first = runs.begun(handed)
        container = first or _found(handed)
        gpus = _cards(node, handed)
        if first is not None:
            container = runs.next_of(first, node, volume, mount, handed.quota * len(gpus))
        else:
            _begin(container, node, volume, mount, handed.quota * len(gpus))
        Claim.objects.bulk_create(Claim(container=container, gpu=gpu, quota=handed.quota) for gpu in gpus)
        audit.record(ACTOR, "taken", container.pk, name=container.name, volume=volume, cards=list(handed.cards),
                     gpu_memory=handed.quota)  # fmt: skip
    return Container.objects.whole().get(pk=container.pk)


def _begin(container: Container, node: int, volume: str, mount: str, quota: int) -> None:
    if container.gpu_memory is None:  # its label was looked at when it was handed over
        allowances.require_promise(container, quota)
    free = Container.objects.filter(FOR_A_NODE, pk=container.pk, kill_requested_at=None)
    given = "Docker's Swarm gave it this node." if Node.several() else ""
    why = container.node_reason or given  # the Swarm was told why this one
    if not free.update(
        node=node, node_reason=why, volume=volume, mount=mount, engine="", queue_reason="",
    ):  # fmt: skip
        raise conflict(f'"{container.name}" has been started already.', code="started_already")


def _found(handed: Handed) -> Container:
    container = Container.objects.live().whole().filter(pk=handed.container).first()
    if container is None or container.kill_requested_at is not None:
        raise conflict("This launch has ended, or was called off.", code="called_off")
    return container


def _cards(node: int, handed: Handed) -> list[Gpu]:
    gpus = list(Gpu.objects.filter(node=node, present=True, index__in=handed.cards))
    if missing := set(handed.cards) - {gpu.index for gpu in gpus}:
        message = (
            f"The Swarm has reserved card {min(missing)}, and this host has none of that number: see gpushare doctor."
        )
        raise Problem("no_such_gpu", message, 409)
    if short := [gpu for gpu in gpus if gpu.most < handed.quota]:
        raise Problem(
            "over_capacity",
            f"The Swarm has reserved {format_size(handed.quota)} on card {short[0].index}, which can never give more "
            f"than {format_size(short[0].most)}: it is declared as larger than it is, see gpushare doctor.",
            409,
        )
    return gpus
