"""Planned launches in the database: what the planner reads, and the transactions that start a run and record its end.

A run's container, its launch command and its place in `progress` are written together, or nothing is. So a scheduler
that is killed at any step finds either a run that has not begun, or one whose launch command is open.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any

from django.conf import settings
from django.db import transaction

from scheduler import clock
from scheduler.core.planned.conditions import After
from scheduler.core.planned.order import Shape
from scheduler.core.planned.progress import (
    Attempt,
    End,
    Progress,
    as_json,
    begun,
    called_off,
    from_json,
    next_run,
    outcome,
    over,
)
from web.audit import seals
from web.errors import Problem, conflict
from web.models import Command, Container, Ended, Node, Planned, State
from web.models.functions import ask
from web.models.states import state_of
from web.people import allowances
from web.people.roles import account_that_launches
from web.services import admission
from web.services.placement.place import Place
from web.spec.planned import fill, name_of_run

COLUMNS = (
    "id", "name", "owner__username", "count", "at_once", "after", "begin_at", "held_at", "cancelled_at", "retries",
    "retry_pause", "gpus", "gpu_count", "quota", "priority", "created_at", "progress", "finished_at", "reason",
    "spec__ttl_seconds",
)  # fmt: skip
CHUNK = 500
new_id = Planned._meta.pk.get_default
_ENDS = {State.EXITED: End.OK, State.KILLED: End.KILLED, State.FAILED: End.FAILED}


class Never(Exception):
    """It can never begin; the message says why."""


@dataclass(slots=True)
class Plan:
    """What the planner keeps of a row: not the launch itself, nor a sweep's values. Times are seconds since 1970."""

    id: str
    name: str
    owner: str
    shape: Shape
    priority: int
    count: int
    at_once: int
    after: tuple[After, ...]
    begin_at: float | None
    held: bool
    cancelled: bool
    retries: int
    retry_pause: float
    created_at: float
    progress: Progress
    ready: float | None = None  # on the monotonic clock: since when its conditions hold
    next: str = field(default_factory=lambda: str(new_id()))  # of the container that comes next of it


def is_unread(node: int) -> bool:
    """Whether people have changed anything since it was read."""
    return Planned.objects.filter(node=node, unread=True).exists()


def read(node: int, *, every: bool) -> tuple[list[Plan], list[str]]:
    """What people have changed since it was read last, or all that is open; and the ids of what has ended since."""
    rows = Planned.objects.filter(node=node).order_by()
    ids = list(rows.filter(unread=True).values_list("pk", flat=True))
    for start in range(0, len(ids), CHUNK):  # before they are read: what is changed after this is unread again
        Planned.objects.filter(pk__in=ids[start : start + CHUNK]).update(unread=False)
    wanted = rows.filter(finished_at=None) if every else rows.filter(pk__in=ids[:CHUNK])
    found = [dict(zip(COLUMNS, row, strict=True)) for row in wanted.values_list(*COLUMNS)]
    for start in range(CHUNK, 0 if every else len(ids), CHUNK):
        more = rows.filter(pk__in=ids[start : start + CHUNK])
        found += [dict(zip(COLUMNS, row, strict=True)) for row in more.values_list(*COLUMNS)]
    plans = [_plan(row) for row in found if row["finished_at"] is None]
    return plans, [str(row["id"]) for row in found if row["finished_at"] is not None]


def _plan(row: Mapping[str, Any]) -> Plan:
    begin_at: datetime | None = row["begin_at"]
    return Plan(
        str(row["id"]),
        row["name"],
        row["owner__username"],
        Shape(row["quota"], row["gpu_count"], tuple(row["gpus"]), row["spec__ttl_seconds"] or inf),
        row["priority"],
        row["count"],
        row["at_once"],
        tuple(After(each["id"], each["name"], each["ended"]) for each in row["after"]),
        begin_at.timestamp() if begin_at else None,
        row["held_at"] is not None,
        row["cancelled_at"] is not None or bool(row["reason"]),
        row["retries"],
        row["retry_pause"],
        row["created_at"].timestamp(),
        from_json(row["progress"]),
    )


def ends(ids: Collection[str]) -> dict[str, End]:
    """How these containers and planned launches, on whatever node, have ended; those that have not are left out.

    One that is not known at all never began.
    """
    found: dict[str, End] = {}
    known = set[str]()
    wanted = list(ids)
    for start in range(0, len(wanted), CHUNK):
        for id_, end in _ended(wanted[start : start + CHUNK]):
            known.add(id_)
            if end is not None:
                found[id_] = end
    return found | {id_: End.NOT_STARTED for id_ in ids if id_ not in known}


def _ended(ids: Sequence[str]) -> Iterable[tuple[str, End | None]]:
    if settings.GPUSHARE_AUDIT_KEY:  # a node sees no other node's (web/services/joining/functions.py)
        for id_, finished, end in ask("SELECT id, finished, ended FROM gpushare_ends(%s::uuid[])", list(ids)):
            yield str(id_), End(end) if finished else None
        return
    facts = ("pk", "started_at", "swapped_at", "paused_at", "suspended_since", "kill_requested_at", "finished_at",
             "exit_code")  # fmt: skip
    for container in Container.objects.filter(pk__in=ids).order_by().only(*facts):
        yield str(container.pk), _ENDS.get(state_of(container))
    planned = Planned.objects.filter(pk__in=ids).order_by()
    for id_, ended, started_at in planned.values_list("pk", "ended", "started_at"):
        yield str(id_), end_of(ended, started_at is not None)


def end_of(ended: str, started: bool) -> End | None:
    """Of a planned launch, for those that come after it."""
    if ended == Ended.CANCELLED:
        return End.FAILED if started else End.NOT_STARTED
    return End(ended) if ended else None


def start(
    node: int,
    id_: str,
    run: tuple[int, int],
    gpus: Sequence[str],
    now: float,
    ours: Callable[[], None],
    *,
    container_id: str = "",
    only_ask: bool = False,
) -> tuple[Container, Progress] | None:
    """Begins a run's attempt on these GPUs; None if that is not what comes next any more, or people have changed it.

    `only_ask`: nothing begins, whatever the answer. Raises Never, or Problem where its owner may have no more now, or
    the node takes no launches.
    """
    planned = Planned.objects.only("owner__username").select_related("owner").get(pk=id_)
    try:
        owner = account_that_launches(planned.owner.get_username())
    except Problem as problem:
        raise Never(problem.message) from None
    with admission.held(owner, ours) as account:
        row = Planned.objects.select_for_update(no_key=True).get(pk=id_)
        progress = from_json(row.progress)
        # What people have changed of it is not known here yet: to whatever begins by what was, they have said no.
        stands = row.finished_at is None and not row.unread and row.node_id == node
        if not stands or next_run(progress, row.count, row.at_once, now) != run:
            return None
        here = Node.objects.only("name", "drained_at").get(pk=node)
        if here.drained_at is not None:
            raise conflict(f'"{here.name}" is being drained: it takes no new launches.', code="node_draining")
        container = _admit(account, row, here, run, gpus, container_id or new_id())
        if only_ask:
            account.entries.clear()
            transaction.set_rollback(True)
            return None
        Command.objects.create(
            kind=Command.Kind.LAUNCH, container=container, node_id=node, issued_by_id=row.asked_by_id,
            arguments={"gpus": list(gpus)},
        )  # fmt: skip
        progress = begun(progress, run[0], Attempt(str(container.pk), run[1], tuple(gpus)))
        began = {} if row.started_at else {"started_at": clock.now()}
        Planned.objects.filter(pk=id_).update(progress=as_json(progress), **began)
    return container, progress


def _admit(
    account: admission.Account, row: Planned, node: Node, run: tuple[int, int], gpus: Sequence[str], id_: Any
) -> Container:
    number, attempt = run
    value = row.values[number - 1] if row.values else str(number)
    spec = fill(row.spec, number, value, row.variable) if row.sweep else row.spec
    name = name_of_run(row.name, number, attempt, value, row.variable, sweep=row.sweep)
    quota = row.quota * row.gpu_count
    try:
        return admission.admit(
            account,
            Place(node, list(gpus), quota, row.node_reason),
            spec,
            by=seals.SCHEDULER,
            action="begin",
            detail={"planned": str(row.pk), "run": number, "attempt": attempt, "of": row.count},
            pk=id_,
            name=admission.free_name(name, id_),
            environment=spec["env"],
            gpu_count=row.gpu_count,
            gpu_uuids=row.gpus,
            node_asked=node.name,  # no placer gives it to another
            planned=row,
            planned_run=number,
            planned_attempt=attempt,
        )
    except Problem as problem:
        if problem.code != "over_allowance":
            raise
        try:
            allowances.require_image(account.limits, spec["image"])
            allowances.require_ever(account.limits, spec["priority"], quota, row.gpus)
        except Problem as never:
            raise Never(never.message) from None
        raise


def record(ended: Iterable[tuple[str, str, End]], now: float) -> dict[str, tuple[Progress, End | None]]:
    """Containers have ended: (planned, container, how). What each is by that, and how it ended, if it has."""
    ended_runs: dict[str, list[tuple[str, End]]] = {}
    for id_, container, end in ended:
        ended_runs.setdefault(id_, []).append((container, end))
    found: dict[str, tuple[Progress, End | None]] = {}
    for row in Planned.objects.open().filter(pk__in=ended_runs).select_for_update(no_key=True).order_by("pk"):
        progress = from_json(row.progress)
        for container, end in ended_runs[str(row.pk)]:
            progress = over(progress, container, end, retries=row.retries, again_at=now + row.retry_pause)
        found[str(row.pk)] = _settle(row, progress)
    return found


def finish(id_: str, reason: str = "") -> tuple[Progress, End | None] | None:
    """Nothing more of it begins, because it was cancelled or, by this `reason`, never can. How it ended, if it has.

    None if people have changed it, and the reason may be none any more.
    """
    row = Planned.objects.select_for_update(no_key=True).get(pk=id_)
    if row.finished_at is not None:
        return from_json(row.progress), end_of(row.ended, row.started_at is not None)
    if row.unread:
        return None
    if reason and row.cancelled_at is None:
        Planned.objects.filter(pk=id_).update(reason=reason[:500])
        row.reason = reason[:500]
    return _settle(row, from_json(row.progress))


def _settle(row: Planned, progress: Progress) -> tuple[Progress, End | None]:
    stopped = row.cancelled_at is not None or bool(row.reason)
    progress = called_off(progress) if stopped else progress
    end = outcome(progress, row.count)
    if end is None and stopped and not progress.running:
        end = End.FAILED if row.started_at else End.NOT_STARTED
    fields: dict[str, Any] = {"progress": as_json(progress)}
    if end is not None:
        ended = Ended.CANCELLED if row.cancelled_at and end is not End.OK else Ended(end)
        by = (
            f"Cancelled by {row.cancelled_by}."
            if ended == Ended.CANCELLED
            else row.reason or _failures(progress, row.count)
        )
        fields |= {"finished_at": clock.now(), "ended": ended, "reason": by, "place": None, "waits": ""}
    Planned.objects.filter(pk=row.pk).update(**fields)
    return progress, end


def _failures(progress: Progress, count: int) -> str:
    return f"{progress.failed} of {count} runs failed." if progress.failed and count > 1 else ""


def disabled(node: int) -> list[str]:
    """Open ones whose owners' accounts were disabled."""
    open_ = Planned.objects.open().filter(node=node, owner__is_active=False).order_by()
    return [str(id_) for id_ in open_.values_list("pk", flat=True)]


def show(places: Mapping[str, tuple[int | None, str]]) -> None:
    """The places of the first, and what they wait for."""
    for id_, (place, waits) in places.items():
        Planned.objects.open().filter(pk=id_).update(place=place, waits=waits[:500])
