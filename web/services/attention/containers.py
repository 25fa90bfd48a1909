"""What is its owner's: who waits, who keeps others waiting, who takes what is not theirs, who fails."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import groupby, takewhile
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet, Sum, TextField
from django.db.models.functions import MD5, Cast

from web.models import Claim, Container, State, UsageHour, large
from web.models.hosts import large_of_nodes
from web.models.records import USUAL_WEIGHT, claims_with_gpus
from web.models.states import state_of
from web.services.attention.item import Item, Kind, about
from web.services.sharing import not_kept
from web.sizes import format_size

LONG_SECONDS = 300  # of waiting for memory: most waits are over sooner
FAILED_SOON = timedelta(seconds=30)  # after its start: it has not done anything yet
FAILED_OFTEN = 3
FAILED_LATELY = timedelta(hours=1)
MOST_OF_A_DAY = 18  # hours of the last 24 in which others waited
NAMED = 3  # who waits for the same memory
ENDED_MOST = 1000  # that are looked at: whoever launches in a loop makes no screen slow
FACTS = ("started_at", "swapped_at", "paused_at", "suspended_since", "kill_requested_at", "finished_at", "exit_code")


def items(now: datetime) -> Iterator[Item]:
    yield from _past_the_shim()
    yield from _on_drained_cards()
    yield from _not_restored()
    holders = _holders()
    yield from _holding(holders)
    yield from _waiting(now, holders)
    yield from _above_share(now)
    yield from _no_turns()
    yield from _failing(now)


def _claims() -> QuerySet[Claim]:
    live = Claim.objects.filter(container__finished_at=None)
    whole = live.select_related("container__owner", "container__node", "gpu")
    return whole.defer(*large("container__"), *large_of_nodes("container__node__"))


def _past_the_shim() -> Iterator[Item]:
    found = _claims().alias(text=Cast("processes", TextField()))
    found = found.filter(Q(unexplained__gt=0) | Q(text__contains='"uncapped": true'))
    for container, claims in _by_container(found):
        if taken := sum(claim.unexplained for claim in claims):
            message = f'"{container.name}" holds {format_size(taken)} beyond what was charged to it.'
            yield about(container, Kind.UNEXPLAINED, message, "kill")
        if any(process.get("uncapped") for claim in claims for process in claim.processes):
            message = f'"{container.name}" has a process on a GPU without the shim: its quota is not enforced.'
            yield about(container, Kind.UNCAPPED, message, "kill")


def _on_drained_cards() -> Iterator[Item]:
    for container, claims in _by_container(_claims().exclude(gpu__drained_at=None)):
        gpu = claims[0].gpu
        message = f'"{container.name}" still runs on GPU {gpu.index}.'  # why that is out of service, its cause says
        because = f"{Kind.DRAINED}:{gpu.uuid}"
        yield about(container, Kind.DRAINED, message, "kill", since=gpu.drained_at, because=because)


def _not_restored() -> Iterator[Item]:
    for container in Container.objects.live().exclude(not_restored="").select_related("owner").defer(*large()):
        message = f'"{container.name}" cannot continue. {container.not_restored}'
        yield about(container, Kind.NOT_RESTORED, message, "resume", "kill", since=container.swapped_at)


@dataclass(slots=True)
class _Holder:
    """Who is paused or idle, and who waits for memory of its GPUs."""

    container: Container
    claims: list[Claim]
    others: dict[UUID, str]

    @property
    def held(self) -> int:
        return sum(claim.granted for claim in self.claims)


def _holders() -> list[_Holder]:
    waiting: dict[str, dict[UUID, str]] = defaultdict(dict)
    awaited = Claim.objects.filter(waiting__gt=0, container__finished_at=None).exclude(container__suspended_since=None)
    for card, pk, name in awaited.values_list("gpu__uuid", "container", "container__name"):
        waiting[card][pk] = name
    if not waiting:
        return []
    stands = Q(container__paused_at__isnull=False) | Q(container__idle_since__isnull=False)
    found = []
    for container, claims in _by_container(_claims().filter(stands, granted__gt=0, gpu__uuid__in=waiting)):
        others = {pk: name for claim in claims for pk, name in waiting[claim.gpu.uuid].items() if pk != container.pk}
        if others:
            found.append(_Holder(container, claims, others))
    return found


def _waiting(now: datetime, holders: list[_Holder]) -> Iterator[Item]:
    """Who runs and waits for memory; and who was moved to host memory and waits for room to come back.

    Of several holders that stand in the way, the one with the most memory counts as the cause.
    """
    causes = {
        pk: f"{Kind.HOLDING}:{holder.container.pk}"
        for holder in sorted(holders, key=lambda each: each.held)
        for pk in holder.others
    }
    long_ago = now - timedelta(seconds=LONG_SECONDS)
    waiting = Container.objects.waiting().filter(suspended_since__lte=long_ago).select_related("owner").defer(*large())
    for container in waiting:
        if container.state is State.SUSPENDED:
            kind, message = Kind.WAITING, f'"{container.name}" waits for memory.'
        elif container.state is State.SWAPPED:
            size = format_size(container.swapped)
            kind = Kind.SWAPPED_WAITING
            message = f'"{container.name}" has {size} in host memory and waits for free GPU memory.'
        else:
            continue
        message = f"{message} {container.queue_reason}".strip()
        because = causes.get(container.pk, "")
        yield about(container, kind, message, "first", "kill", since=container.suspended_since, because=because)


def _holding(holders: list[_Holder]) -> Iterator[Item]:
    for holder in holders:
        container, held = holder.container, format_size(holder.held)
        whom = _named(list(holder.others.values())) + (" wait" if len(holder.others) > 1 else " waits")
        movable = container.node and not (container.node.cannot_swap or container.cannot_move)
        free = ("free",) if movable else ()
        if container.paused_at is not None:
            message = f'"{container.name}" is paused and holds {held}; {whom} for memory.'
            yield about(container, Kind.HOLDING, message, "resume", *free, "kill", since=container.paused_at)
        else:
            message = f'"{container.name}" is idle and holds {held}; {whom} for memory.'
            yield about(container, Kind.HOLDING, message, *free, "kill", since=container.idle_since)


def _above_share(now: datetime) -> Iterator[Item]:
    """Who had more than twice the fair share for a day, and others wait now."""
    hours = int(now.timestamp()) // 3600
    day = UsageHour.objects.filter(hour__gt=hours - 24, hour__lte=hours)
    sums = day.values("person").annotate(had=Sum("had"), due=Sum("due"), hours=Count("hour", distinct=True))
    above = [
        row for row in sums.order_by("person") if row["hours"] >= MOST_OF_A_DAY and row["had"] > 2 * row["due"] > 0
    ]
    if not above:
        return
    waiting = Container.objects.waiting().order_by().values_list("owner__username").annotate(Count("pk"))
    waits = dict(waiting)
    for row in above:
        if others := sum(count for name, count in waits.items() if name != row["person"]):
            person, ratio = row["person"], row["had"] / row["due"]
            message = (
                f"{person} has had {ratio:.1f} times the fair share for a day; {others} "
                f"container{'s' * (others > 1)} of others wait{'s' * (others == 1)}. See the page Fairness."
            )
            yield Item(f"{Kind.ABOVE_SHARE}:{person}", Kind.ABOVE_SHARE, person, message, command="gpushare fairness")


def _named(names: list[str]) -> str:
    """Two of them by name; thirty would fill the screen."""
    few = names if len(names) <= NAMED else names[: NAMED - 1]
    quoted = [f'"{name}"' for name in few]
    *first, last = [*quoted, f"{len(names) - len(few)} others"] if len(few) < len(names) else quoted
    return f"{', '.join(first)} and {last}" if first else last


def _no_turns() -> Iterator[Item]:
    """Whose compute weight or limit is not kept; and who takes no part in the turns without having one."""
    shares = ~Q(compute_weight=USUAL_WEIGHT) | Q(compute_limit__isnull=False)
    live = Container.objects.live().exclude(started_at=None).filter(~Q(no_turns="") | shares)
    for container in live.select_related("owner").prefetch_related(claims_with_gpus()).defer(*large()):
        if why := not_kept(container):
            yield about(container, Kind.NO_TURNS, f'"{container.name}": {why}', "kill")
        elif container.no_turns:
            message = f'"{container.name}" does not share compute time. {container.no_turns}'
            yield about(container, Kind.NO_TURNS, message, "kill")


def _failing(now: datetime) -> Iterator[Item]:
    """One launch of one person that failed soon after its start again and again, and did not do better since."""
    ended = Container.objects.filter(finished_at__gte=now - FAILED_LATELY).exclude(started_at=None)
    same = MD5(Cast("command", TextField()))
    runs: dict[tuple[object, ...], list[Any]] = defaultdict(list)
    newest = ended.order_by("-finished_at").values_list("pk", "owner", "image", same, *FACTS, named=True)
    for run in newest[:ENDED_MOST]:
        runs[run[1:4]].append(run)
    found = {launch: list(takewhile(_failed_soon, row)) for launch, row in runs.items()}
    rows = {launch: row for launch, row in found.items() if len(row) >= FAILED_OFTEN}
    last = Container.objects.select_related("owner").defer(*large()).in_bulk([row[0].pk for row in rows.values()])
    for launch, row in rows.items():
        if (container := last.get(row[0].pk)) is None:  # forgotten just now
            continue
        why = container.reason or f"Exit code {container.exit_code}."
        message = f'"{container.name}" failed {len(row)} times in a row within seconds of its start. The last: {why}'
        person = container.owner.get_username()
        # Not by a run: the first of them is another one with each that is long enough ago.
        key = f"{Kind.FAILING}:{sha256(repr(launch).encode()).hexdigest()[:32]}"
        acts = () if container.is_of_pods else ("again",)
        yield Item(key, Kind.FAILING, person, message, container.finished_at, container, acts=acts)


def _failed_soon(run: Any) -> bool:
    return state_of(run) is State.FAILED and run.finished_at - run.started_at <= FAILED_SOON


def _by_container(claims: QuerySet[Claim]) -> Iterator[tuple[Container, list[Claim]]]:
    for _, group in groupby(claims.order_by("container_id", "gpu__index"), key=lambda claim: claim.container_id):
        found = list(group)
        yield found[0].container, found
