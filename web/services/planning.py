"""Planned launches, as people want them: recorded, changed, held, released, called off, asked for again.

Nothing of it starts anything: the scheduler of the row's node reads it (`unread`) and starts what may start
(scheduler/containers/planner.py). All raise `web.errors.Problem`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from web import audit
from web.errors import Problem, conflict, forbidden, invalid
from web.models import Command, Container, Ended, Node, Planned
from web.people import allowances
from web.people.roles import Deed, owner_of_launch, rights_of
from web.services import admission
from web.services.issuing import hint
from web.services.launching import launch as launch_now
from web.services.launching import make_name, require_sensible
from web.services.placement.place import Place, place
from web.spec.planned import MOST_AT_ONCE, PLANNING, EditSpec, PlannedSpec, is_planned
from web.spec.requests import NoteSpec

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MOST = 10_000  # open ones of a person
LATE = timedelta(minutes=1)  # a clock may differ by so much
PAUSE = 60.0  # seconds before a retry, where nobody says
HINT = "planned"


def launch(user: User, spec: Mapping[str, Any], key: str = "", owner: str = "") -> Planned | Command:
    """A planned launch, or, of a body that plans nothing after all, a launch."""
    if not spec.keys() & set(PLANNING):
        return launch_now(user, dict(spec), key, owner)
    detail = admission.printable({name: spec[name] for name in ("image", "name", "gpu_memory") if name in spec})
    with admission.refusals_recorded(user.get_username(), "plan-refused", detail.get("name", ""), **detail):
        asked = PlannedSpec.parse(spec)
        if is_planned(asked):
            return _plan(user, owner_of_launch(user, owner), asked, key)
    return launch_now(user, {name: value for name, value in spec.items() if name not in PLANNING}, key, owner)


def _plan(user: User, owner: User, spec: dict[str, Any], key: str, again_of: Planned | None = None) -> Planned:
    asked = {name: spec.pop(name) for name in PLANNING}
    require_sensible(owner, spec)
    _require_future(asked["begin_at"])
    digest = hashlib.sha256(json.dumps([spec, asked], sort_keys=True).encode()).hexdigest()
    after = [_parent(user, **each) for each in asked["after"]]
    with admission.held(owner) as account:
        if key and (earlier := Planned.objects.filter(owner=owner, launch_key=key).first()):
            if earlier.launch_digest != digest:
                raise conflict("This idempotency key was used for another launch.", code="idempotency_key_reused")
            return earlier
        if Planned.objects.open().filter(owner=owner).count() >= MOST:
            raise conflict(f"You have {MOST:,} planned launches. A sweep is one, however many runs it has.",
                           code="too_many_planned")  # fmt: skip
        where = place(account.limits, spec["gpus"], spec["gpu_memory"], spec["node"], asks=spec["constraints"],
                      owner=owner.get_username(), lasts=spec["ttl_seconds"])  # fmt: skip
        account.require_hours()
        allowances.require_image(account.limits, spec["image"])
        allowances.require_ever(account.limits, spec["priority"], where.quota, where.gpus)
        planned = _row(user, owner, spec, asked, where)
        planned.after, planned.launch_key, planned.launch_digest = after, key or None, digest if key else ""
        planned.again_of = again_of
        if _is_taken(planned.name):
            raise admission.name_taken(planned.name)
        try:
            with transaction.atomic():
                planned.save(force_insert=True)
        except IntegrityError:  # somebody took the name in between
            raise admission.name_taken(planned.name) from None
        detail = {"image": spec["image"], "gpu_memory": spec["gpu_memory"], "runs": planned.count, "after": after}
        detail |= {"owner": owner.get_username()} if owner != user else {}
        account.entries.append(
            partial(audit.record, user.get_username(), "plan", planned.pk, name=planned.name, **detail)
        )
    _tell(planned.node_id)
    return planned


def _row(user: User, owner: User, spec: dict[str, Any], asked: Mapping[str, Any], where: Place) -> Planned:
    sweep = asked["sweep"] or {}
    values = sweep.get("values", [])
    count = len(values) or sweep.get("count", 1)
    cards = len(where.gpus) or (spec["gpus"] if isinstance(spec["gpus"], int) else len(spec["gpus"]))
    return Planned(
        name=spec["name"] or make_name(spec["image"]), owner=owner, asked_by=user, node=where.node,
        node_reason=where.reason[:500], spec=spec, sweep=bool(sweep), variable=sweep.get("name", ""), values=values,
        count=count, at_once=asked["at_once"] or min(count, MOST_AT_ONCE),
        begin_at=parse_datetime(asked["begin_at"]) if asked["begin_at"] else None,
        held_at=timezone.now() if asked["hold"] else None, retries=asked["retries"],
        retry_pause=PAUSE if asked["retry_pause"] is None else asked["retry_pause"], gpus=where.gpus,
        gpu_count=cards, quota=where.quota // cards, priority=spec["priority"],
    )  # fmt: skip


def edit(user: User, planned: Planned, **fields: Any) -> Planned:
    """Another `at_once`, `priority`, `after`, `begin_at`, `retries` or `retry_pause`; also while runs are under way."""
    asked = EditSpec.parse(fields)
    if not asked:
        raise invalid(f"Nothing to change: give one or more of {', '.join(EditSpec().fields)}.")
    if asked.get("at_once", 1) > 1 and not planned.sweep:
        raise invalid("This is for a sweep.", "at_once")
    if "begin_at" in asked:
        asked["begin_at"] = asked["begin_at"] or timezone.now()  # it waits from now on, and not from when it was made
        _require_future(asked["begin_at"].isoformat())
    if "priority" in asked:
        allowances.require_priority(allowances.limits_of(planned.owner), asked["priority"])
    if "after" in asked:
        asked["after"] = [_parent(user, **each) for each in asked["after"]]

    def check(row: Planned) -> None:
        if "after" in asked and (row.started_at is not None):
            raise conflict(
                f'"{row.name}" has begun: its conditions can no longer be changed.', "after", code="has_begun"
            )
        if "priority" in asked:
            asked["spec"] = {**row.spec, "priority": asked["priority"]}

    with transaction.atomic():
        changed = _change(user, planned, "plan-changed", asked, check)
        # Behind the audit log's entry, which has all others wait: of two edits that make a circle the second finds it.
        if "after" in asked and (names := _circle_through(changed)):
            raise invalid(f"These would wait for each other: {' → '.join(names)}.", "after")
    return changed


def hold(user: User, planned: Planned, note: str = "") -> Planned:
    """Nothing more of it begins until it is released. What runs goes on."""
    NoteSpec.parse({"note": note})
    return _change(user, planned, "plan-held", {"held_at": planned.held_at or timezone.now()}, note=note)


def release(user: User, planned: Planned, note: str = "") -> Planned:
    """What was held back waits from now on, and not from when it was made."""
    NoteSpec.parse({"note": note})
    fields: dict[str, Any] = {"held_at": None}

    def check(row: Planned) -> None:
        if row.held_at is not None:
            fields["begin_at"] = max(timezone.now(), row.begin_at or timezone.now())

    return _change(user, planned, "plan-released", fields, check, note=note)


def cancel(user: User, planned: Planned, note: str = "") -> Planned:
    """Nothing more of it ever begins. What runs goes on, and it has ended when that has."""
    NoteSpec.parse({"note": note})
    fields = {"cancelled_at": timezone.now(), "cancelled_by": user.get_username()}
    return _change(user, planned, "plan-cancelled", fields, note=note)


def again(user: User, planned: Planned) -> list[Planned]:
    """The same once more, and all of the person's that never began because of it, after the new one and not the old."""
    _require_steering(user, planned, "launch again")
    if planned.finished_at is None:
        raise conflict(f'"{planned.name}" has not ended.', code="not_ended")
    chain = _never_began_because_of(planned)
    anew: dict[str, Planned] = {}
    with transaction.atomic():
        for each in chain:
            spec = PlannedSpec.parse(again_as(each, {old: str(new.pk) for old, new in anew.items()}))
            anew[str(each.pk)] = _plan(user, each.owner, spec, "", each)
    return list(anew.values())


def _never_began_because_of(planned: Planned) -> list[Planned]:
    """It, and all of the person's that never began because of it, each behind what it was to begin after: that may be
    younger, as `after` can be changed."""
    never = list(Planned.objects.filter(owner=planned.owner, ended=Ended.NOT_STARTED).exclude(pk=planned.pk))
    parents = {str(each.pk): {its["id"] for its in each.after} for each in never}
    reached, grown = {str(planned.pk)}, True
    while grown:
        more = {pk for pk, its in parents.items() if pk not in reached and its & reached}
        reached, grown = reached | more, bool(more)
    chain, left = [planned], [each for each in never if str(each.pk) in reached]
    while left:
        waiting = {str(each.pk) for each in left}
        ready = [each for each in left if not parents[str(each.pk)] & waiting] or left  # of a circle, in any order
        chain += ready
        left = [each for each in left if each not in ready]
    return chain


def again_as(planned: Planned, instead: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The body that would plan it once more. `instead`: parent → the one that it begins after now."""
    after = [{"container": (instead or {}).get(its["id"], its["id"]), "ended": its["ended"]} for its in planned.after]
    ends = {
        str(pk)
        for pk in Planned.objects.filter(pk__in=[its["id"] for its in planned.after]).values_list("pk", flat=True)
    }
    body = {**planned.spec, "name": "" if _is_taken(planned.name) else planned.name, "queue": True}
    body |= {"after": [its for its in after if its["container"] in ends | set((instead or {}).values())
                       or Container.objects.filter(pk=its["container"]).exists()]}  # fmt: skip
    body |= {"retries": planned.retries, "retry_pause": planned.retry_pause}
    if planned.sweep:
        counted = {"values": planned.values} if planned.values else {"count": planned.count}
        body |= {"sweep": {"name": planned.variable, **counted}, "at_once": planned.at_once}
    return body


def rehome(node: Node) -> None:
    """A node was removed: what was planned for it goes to another one, or ends. Within a transaction."""
    for planned in Planned.objects.open().filter(node=node).select_related("owner"):
        spec = planned.spec
        try:
            limits = allowances.limits_of(planned.owner)
            where = place(limits, spec["gpus"], spec["gpu_memory"], spec["node"], asks=spec["constraints"],
                          owner=planned.owner.get_username(), lasts=spec["ttl_seconds"])  # fmt: skip
        except Problem as problem:
            end(planned, f'Its node "{node.name}" was removed. {problem.message}')
        else:
            moved = {"node": where.node, "node_reason": where.reason[:500], "gpus": where.gpus, "unread": True}
            Planned.objects.filter(pk=planned.pk).update(**moved, place=None, waits="")
            _tell(where.node.pk)


def end(planned: Planned, reason: str) -> None:
    """What no scheduler can start any more."""
    ended = Ended.FAILED if planned.started_at else Ended.NOT_STARTED
    ended = Ended.CANCELLED if planned.cancelled_at else ended
    Planned.objects.open().filter(pk=planned.pk).update(
        finished_at=timezone.now(), ended=ended, reason=reason[:500], place=None, waits=""
    )


def circle(parents: Mapping[str, Collection[str]], start: str) -> list[str]:
    """A way from `start` back to itself, from a planned launch to what it begins after; empty if there is none."""
    ways, seen = [[start]], set[str]()
    while ways:
        way = ways.pop()
        for parent in parents.get(way[-1], ()):
            if parent == start:
                return [*way, start]
            if parent not in seen:
                seen.add(parent)
                ways.append([*way, parent])
    return []


def _circle_through(planned: Planned) -> list[str]:
    rows = {str(pk): (name, its) for pk, name, its in Planned.objects.open().values_list("pk", "name", "after")}
    way = circle({pk: [each["id"] for each in its] for pk, (_, its) in rows.items()}, str(planned.pk))
    return [rows[pk][0] for pk in way if pk in rows]


def _parent(user: User, name: str, ended: str) -> dict[str, Any]:
    """What a launch is to begin after. Everybody sees everybody's, so it may be another person's. Raises Problem."""
    found: Planned | Container | None = None
    try:
        pk = UUID(name)
    except ValueError:
        live: list[Planned | Container | None] = [
            Planned.objects.open().filter(name=name).first(), Container.objects.live().filter(name=name).first()
        ]  # fmt: skip
        ended_: list[Planned | Container | None] = [
            Planned.objects.filter(name=name).order_by("-created_at").first(),
            Container.objects.filter(name=name).order_by("-created_at").first(),
        ]
        found = next((each for each in live if each), None) or max(
            (each for each in ended_ if each), key=lambda each: each.created_at, default=None
        )
    else:
        found = Planned.objects.filter(pk=pk).first() or Container.objects.filter(pk=pk).first()
    if found is None:
        message = f'There is no container and no sweep "{name}" to begin after.'
        raise Problem("unknown_container", message, 400, "after")
    return {"id": str(found.pk), "name": found.name, "planned": isinstance(found, Planned), "ended": ended}


def _require_future(begin_at: str | None) -> None:
    at = parse_datetime(begin_at) if begin_at else None
    if at is not None and at < timezone.now() - LATE:
        raise invalid("This time has passed. Leave it empty to begin as soon as memory is free.", "begin_at")


def _is_taken(name: str) -> bool:
    return Planned.objects.open().filter(name=name).exists() or admission.is_taken(name)


def _require_steering(user: User, planned: Planned, deed: str) -> None:
    if not steers(user)(planned):
        raise forbidden(f'You may not {deed} "{planned.name}": it belongs to {planned.owner.get_username()}.')


def steers(user: User) -> Callable[[Planned], bool]:
    """Which planned launches they may change: their own, what they asked for others, or, as an operator, all."""
    rights = rights_of(user)
    own = rights.may(Deed.LAUNCH)
    return lambda planned: (
        rights.may(Deed.STEER_ALL)
        or (own and (planned.owner_id == user.pk or (rights.serves and planned.asked_by_id == user.pk)))
    )


def _change(
    user: User,
    planned: Planned,
    action: str,
    fields: dict[str, Any],
    check: Callable[[Planned], None] = lambda row: None,
    **detail: Any,
) -> Planned:
    _require_steering(user, planned, "change")
    with transaction.atomic():
        row = Planned.objects.select_for_update(of=("self",), no_key=True).select_related("owner").get(pk=planned.pk)
        if row.finished_at is not None or row.cancelled_at is not None:
            what = "has ended" if row.finished_at else "was cancelled"
            raise conflict(f'"{row.name}" {what}.', code="planned_ended")
        check(row)
        for name, value in fields.items():
            setattr(row, name, value)
        row.unread = True
        row.save(update_fields=[*fields, "unread"])
        shown = {name: str(value) for name, value in fields.items() if name != "spec"}
        audit.record(user.get_username(), action, row.pk, name=row.name, **detail, **shown)
    _tell(row.node_id)
    return row


def _tell(node: int | None) -> None:
    if node is not None:
        transaction.on_commit(partial(hint, node, HINT))


def matching(query: Mapping[str, Any]) -> Q:
    """The filters of the list: `owner`, `name`, `node`, `open`."""
    paths = {"owner": "owner__username", "name": "name", "node": "node__name"}
    return Q(**{path: query[name] for name, path in paths.items() if name in query}) & Q(
        finished_at__isnull=query.get("open", True)
    )
