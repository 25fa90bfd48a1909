"""What needs somebody now: who waits for long, who keeps them waiting, what nobody accounts for, what is away.

Every item is a function of what the database says at one moment: it is there as long as that is so, and nothing has to
be raised or cleared. Its `key` stays the same for as long, so that whoever is told of it can be told once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby, takewhile
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Q, QuerySet, Sum, TextField
from django.db.models.functions import Cast, Coalesce
from django.utils import timezone

from web.models import Claim, Container, Gpu, Node, State
from web.sizes import format_size

FAILED_SOON = timedelta(seconds=30)  # after its start: it has not done anything yet
FAILED_OFTEN = 3
FAILED_LATELY = timedelta(hours=1)
FOREIGN = 512 << 20  # bytes; what a desktop or a driver's tool takes is not worth a word


class Kind(StrEnum):
    SCHEDULER_AWAY = "scheduler_away"
    ENGINE_AWAY = "engine_away"
    GPU_GONE = "gpu_gone"
    UNEXPLAINED = "unexplained"
    UNCAPPED = "uncapped"
    WAITING = "waiting"
    HOLDING = "holding"
    NO_TURNS = "no_turns"
    FAILING = "failing"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Item:
    """`person` is whose it is: a user name, or empty where it is the host's. `acts`: what can be done about it.

    An act is the name of an action on `container`: pause, free, resume, kill.
    """

    key: str
    kind: Kind
    person: str
    message: str
    since: datetime | None = None
    container: Container | None = None
    gpu: Gpu | None = None
    acts: tuple[str, ...] = ()


def items(now: datetime | None = None) -> list[Item]:
    """All of them, what stops everybody first. Some ten small queries, whose answers are empty while all is well."""
    now = now or timezone.now()
    found = [
        *_hosts(),
        *_gpus(),
        *_past_the_shim(),
        *_waiting(now),
        *_holding(),
        *_no_turns(),
        *_failing(now),
    ]
    order = list(Kind)
    return sorted(found, key=lambda item: order.index(item.kind))


def _hosts() -> Iterator[Item]:
    for node in Node.objects.all():
        if not node.is_alive():
            message = (
                f'The scheduler of "{node.name}" is away: containers go on, but nothing is granted. Start it again.'
            )
            yield Item(f"{Kind.SCHEDULER_AWAY}:{node.name}", Kind.SCHEDULER_AWAY, "", message, node.seen_at)
        elif node.engine_error:
            yield Item(f"{Kind.ENGINE_AWAY}:{node.name}", Kind.ENGINE_AWAY, "", node.engine_error)


def _gpus() -> Iterator[Item]:
    live = Q(claims__container__finished_at=None)
    ours = Coalesce(Sum("claims__unexplained", filter=live), 0)
    for gpu in Gpu.objects.annotate(ours=ours, promised=Count("claims", filter=live & Q(claims__isnull=False))):
        if not gpu.present and gpu.promised:
            message = f"GPU {gpu.index} has gone, and containers still have a quota on it. Look at the driver's log."
            yield Item(f"{Kind.GPU_GONE}:{gpu.uuid}", Kind.GPU_GONE, "", message, gpu=gpu)
        elif gpu.present and gpu.foreign - gpu.ours >= FOREIGN:
            size = format_size(gpu.foreign - gpu.ours)
            message = f"{size} of GPU {gpu.index} are held by programs that are no container's: nvidia-smi names them."
            yield Item(f"{Kind.FOREIGN}:{gpu.uuid}", Kind.FOREIGN, "", message, gpu=gpu)


def _claims() -> QuerySet[Claim]:
    return Claim.objects.filter(container__finished_at=None).select_related(
        "container__owner", "container__node", "gpu"
    )


def _past_the_shim() -> Iterator[Item]:
    for container, claims in _by_container(_claims().filter(unexplained__gt=0)):
        taken = format_size(sum(claim.unexplained for claim in claims))
        message = f'"{container.name}" holds {taken} past the shim, beyond what it was charged.'
        yield _about(container, Kind.UNEXPLAINED, message, "kill")
    told = Cast("processes", TextField())
    for container, _ in _by_container(_claims().annotate(told=told).filter(told__contains='"uncapped": true')):
        message = f'"{container.name}" has a process on a GPU that the shim is not in: nothing keeps it to its quota.'
        yield _about(container, Kind.UNCAPPED, message, "kill")


def _waiting(now: datetime) -> Iterator[Item]:
    long_ago = now - timedelta(minutes=settings.GPUSHARE_ATTENTION_MINUTES)
    for container in (
        Container.objects.in_state(State.SUSPENDED).filter(suspended_since__lte=long_ago).select_related("owner")
    ):
        message = f'"{container.name}" waits for memory. {container.queue_reason}'.strip()
        yield _about(container, Kind.WAITING, message, "kill", since=container.suspended_since)


def _holding() -> Iterator[Item]:
    """Who is paused or idle and holds memory of a GPU that somebody waits for."""
    waiting: dict[str, dict[UUID, str]] = defaultdict(dict)
    for claim in _claims().filter(waiting__gt=0).exclude(container__suspended_since=None):
        waiting[claim.gpu.uuid][claim.container.pk] = claim.container.name
    if not waiting:
        return
    stands = Q(container__paused_at__isnull=False) | Q(container__idle_since__isnull=False)
    for container, claims in _by_container(_claims().filter(stands, granted__gt=0, gpu__uuid__in=waiting)):
        others = {pk: name for claim in claims for pk, name in waiting[claim.gpu.uuid].items() if pk != container.pk}
        if not others:
            continue
        held = format_size(sum(claim.granted for claim in claims))
        whom = " and ".join(f'"{name}"' for name in others.values()) + (" wait" if len(others) > 1 else " waits")
        free = ("free",) if container.node and not container.node.cannot_swap else ()
        if container.paused_at is not None:
            message = f'"{container.name}" is paused and holds {held}, for which {whom}.'
            yield _about(container, Kind.HOLDING, message, "resume", *free, "kill", since=container.paused_at)
        else:
            message = f'"{container.name}" computes nothing and holds {held}, for which {whom}.'
            yield _about(container, Kind.HOLDING, message, *free, "kill", since=container.idle_since)


def _no_turns() -> Iterator[Item]:
    for container in Container.objects.live().exclude(no_turns="").select_related("owner"):
        message = f'"{container.name}" takes no part in the turns of computing. {container.no_turns}'
        yield _about(container, Kind.NO_TURNS, message, "kill")


def _failing(now: datetime) -> Iterator[Item]:
    """One launch of one person that failed soon after its start again and again, and did not do better since."""
    ended = Container.objects.filter(finished_at__gte=now - FAILED_LATELY).exclude(started_at=None)
    runs: dict[tuple[str, ...], list[Container]] = defaultdict(list)
    for container in ended.select_related("owner").order_by("-finished_at"):
        runs[container.owner.get_username(), container.image, *map(str, container.command)].append(container)
    for containers in runs.values():
        row = list(takewhile(_failed_soon, containers))
        if len(row) >= FAILED_OFTEN:
            last, first = row[0], row[-1]
            why = last.reason or f"Exit code {last.exit_code}."
            message = f'"{last.name}" failed {len(row)} times in a row within seconds of its start. The last: {why}'
            person = last.owner.get_username()
            yield Item(f"{Kind.FAILING}:{first.pk}", Kind.FAILING, person, message, last.finished_at, last)


def _failed_soon(container: Container) -> bool:
    assert container.started_at is not None
    assert container.finished_at is not None
    return container.state is State.FAILED and container.finished_at - container.started_at <= FAILED_SOON


def _by_container(claims: QuerySet[Claim]) -> Iterator[tuple[Container, list[Claim]]]:
    for _, group in groupby(claims.order_by("container_id", "gpu__index"), key=lambda claim: claim.container_id):
        found = list(group)
        yield found[0].container, found


def _about(container: Container, kind: Kind, message: str, *acts: str, since: datetime | None = None) -> Item:
    return Item(f"{kind}:{container.pk}", kind, container.owner.get_username(), message, since, container, acts=acts)
