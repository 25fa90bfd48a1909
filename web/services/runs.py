"""What a Swarm begins again, because its launch asked for that: each run is a container of its own.

The first run is the launch's own record; each later one has the same fields, and says whose run it is (`run_of`). So
each has its history, its end and its claims, on whichever node it came to. All of it is over once somebody, or a time
limit, has killed a run, or its last one was removed: from then on none begins, and the placer takes the launch back.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db.models import Q
from django.utils import timezone

from web.audit import seals
from web.errors import Problem, conflict
from web.models import Command, Container, Node, large
from web.models.functions import ask
from web.people.roles import account_that_launches
from web.services import admission
from web.services.placement.place import Place
from web.services.placement.placement_ticket import PlacementTicket
from web.spec.requests import COLUMNS


def _of(ticket: PlacementTicket) -> list[Container]:
    """All runs so far of what is begun again with this volume, the newest first and the launch's own the last.

    None if it is no such launch. For whoever has its key, wherever the runs were: a host that joined sees no others'
    containers (joining/functions.py).
    """
    if settings.GPUSHARE_AUDIT_KEY:
        asked = Container.objects.raw("SELECT * FROM gpushare_runs(%s, %s)", [ticket.container, ticket.key])
        return _newest_first(asked)
    first = Container.objects.filter(pk=ticket.container, handed=ticket.key).exclude(Q(restart="") | Q(handed=""))
    runs = Container.objects.filter(Q(pk__in=first.values("pk")) | Q(run_of__in=first.values("pk")))
    return _newest_first(runs)


def _newest_first(runs: Iterable[Container]) -> list[Container]:
    """Their hosts' clocks may differ: the launch's own was first all the same."""
    return sorted(runs, key=lambda run: (run.run_of_id is not None, run.created_at), reverse=True)


def is_over(first: Container) -> bool:
    """Whether no further run is to begin, of one that has begun. For who sees them all."""
    runs = _of_launch(first)
    return _are_over(runs, _asked_to_be_removed(runs))


def is_awaited(run: Container) -> bool:
    """Whether this one has ended, and another is to begin after it. For who sees them all."""
    first = run.run_of or run
    return bool(run.restart) and run.finished_at is not None and _of_launch(first)[0] == run and not is_over(first)


def _of_launch(first: Container) -> list[Container]:
    return _newest_first(Container.objects.filter(Q(pk=first.pk) | Q(run_of=first)).defer(*large()))


def _are_over(runs: Sequence[Container], removed: Collection[UUID]) -> bool:
    """`removed`: by somebody here. Docker forgets containers, too, and lost nodes take theirs along."""
    first, newest = runs[-1], runs[0]
    killed = any(run.kill_requested_at is not None for run in runs)
    gone = newest.removed_at is not None and (newest.started_at is None or newest.pk in removed)
    return not first.restart or killed or gone or _left(first) == 0


def _asked_to_be_removed(runs: Sequence[Container]) -> set[UUID]:
    asked = Command.objects.filter(kind=Command.Kind.REMOVE, container__in=runs)
    return set(asked.exclude(outcome=Command.Outcome.REFUSED).values_list("container", flat=True))


def _removed(ticket: PlacementTicket, runs: Sequence[Container]) -> set[UUID]:
    """The same for whoever has its key: a host that joined sees no commands of other nodes'."""
    if settings.GPUSHARE_AUDIT_KEY:
        return {pk for (pk,) in ask("SELECT gpushare_removed_runs(%s, %s)", ticket.container, ticket.key)}
    return _asked_to_be_removed(runs)


def begun(ticket: PlacementTicket) -> bool:
    """Whether a run of what is begun again with this volume has begun before. Problem if it is over."""
    runs = _of(ticket)
    if not runs or runs[-1].started_at is None:
        return False
    if _are_over(runs, _removed(ticket, runs)):
        raise called_off()
    return True


def called_off() -> Problem:
    return conflict("This launch has ended, or was cancelled.", code="called_off")


def next_of(ticket: PlacementTicket, node: int, volume: str, mount: str, claims: Mapping[str, int]) -> Container:
    """The record of one more run, on this node, with its `claims`: bytes by GPU.

    Raises Problem while one lives on a node that is alive, or where its owner may not have it any more: as at its
    launch, since between two runs the owner may have used the room for others.
    """
    with admission.held(_owner_of(_of(ticket)[-1])) as account:  # two at once: one after the other
        runs = _of(ticket)
        first = runs[-1]
        if _are_over(runs, _removed(ticket, runs)):  # while it was waited for the owner, whom a removal holds as well
            raise called_off()
        alive = Node.objects.alive()  # by the database's clock
        for lives in (run for run in runs if run.finished_at is None):
            if lives.node_id is None or alive.filter(pk=lives.node_id).exists():
                raise Problem("started_already", f'"{lives.name}" runs already.', 409)
        id_, quota = uuid.uuid4(), sum(claims.values())
        why = f"Docker's Swarm has begun it again: it is run {len(runs) + 1} of {first.name}."
        return admission.admit(
            account,
            Place(Node.objects.get(pk=node), list(claims), quota, why, claims),
            {name: getattr(first, name) for name in COLUMNS},
            by=seals.DOCKER,
            action="taken",
            detail=ticket.audit_detail(volume),
            pk=id_,
            name=admission.free_name(first.name, id_),
            volume=volume,
            mount=mount,
            run_of_id=first.pk,
            gpu_uuids=first.gpu_uuids,
            environment=first.environment,
            ttl_seconds=_left(first),
            # What the first run had at its end is not reserved for this.
            gpu_memory=quota // first.gpu_count,
        )


def _owner_of(first: Container) -> User:
    return account_that_launches(get_user_model().objects.values_list("username", flat=True).get(pk=first.owner_id))


def _left(first: Container) -> float | None:
    """Seconds of its time limit, which is one for all runs together."""
    return None if first.ends_by is None else max(0.0, (first.ends_by - timezone.now()).total_seconds())
