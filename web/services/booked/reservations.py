"""Reservations: made by people within their allowance and by admins without one, for one person or a group.

Nothing is oversold: each is checked against all that are open, at every moment of each of its times, while the rows of
the GPUs are locked; so of two that ask at once for the same memory one is refused. Who cannot be moved counts, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from web import audit
from web.errors import Problem, conflict, forbidden, invalid, not_found
from web.models import Claim, Container, Gpu, Reservation, ReservedGpu, series
from web.people import allowances
from web.people.roles import Deed, account_that_launches, require, rights_of
from web.services.booked import host_memory
from web.services.booked.capacity import Taken, worst
from web.services.issuing import hint
from web.sizes import format_size
from web.spec.booked import ReservationSpec

USUAL_OPEN, USUAL_DAYS = 5, 14  # where no allowance says anything
PLACED_AHEAD = timedelta(days=1)  # so far ahead is looked where a launch is placed
NAMED = 3
GIB_HOUR = 2**30 * 3600
Short = Reservation.Short
Spans = Sequence[tuple[datetime, datetime]]


# ---- made and ended -----------------------------------------------------------------------------------------------


def reserve(user: User, data: Any) -> Reservation:
    """Makes one (a `ReservationSpec`). Raises Problem, and nothing is reserved then."""
    require(user, Deed.LAUNCH)
    asked = ReservationSpec.parse(data)
    holder = _holder(user, asked.pop("user"), asked.pop("group"))
    gpus, node, size = asked.pop("gpus"), asked.pop("node"), asked["gpu_memory"]
    made = Reservation(**holder, **asked, made_by=user.get_username(), over_at=timezone.now())
    spans = series.spans(made.starts, made.zone, made.minutes, made.repeat, made.times)
    now = timezone.now()
    if spans[0][0] <= now:
        raise invalid(f"This begins in the past: it is {now:%Y-%m-%d %H:%M} UTC.", "starts")
    made.over_at = spans[-1][1]
    with transaction.atomic():
        allowances.hold(user)
        cards = _choose(made, gpus, node, spans, now)
        if not rights_of(user).may(Deed.MANAGE):
            _require_allowance(user, cards, size, spans, now)
        made.save(force_insert=True)
        ReservedGpu.objects.bulk_create(ReservedGpu(reservation=made, gpu=card) for card in cards)
        audit.record(user.get_username(), "reserve", f"reservation {made.pk}", **_audit_detail(made, cards))
        _wake()
    return made


def end(user: User, pk: int) -> None:
    """Takes back what has not begun, and ends what has. Nobody has to leave. Raises Problem."""
    now = timezone.now()
    found = Reservation.objects.open(now).select_related("user", "group").filter(pk=pk).first()
    if found is None:
        raise not_found("There is no such reservation, or it is over.")
    if not may_end(user, found):
        raise forbidden(f"You may not end this: it is of {found.holder}, and {found.made_by} made it.")
    with transaction.atomic():
        if Reservation.objects.filter(pk=pk, over_at__gt=now).update(over_at=now):
            audit.record(user.get_username(), "reservation-ended", f"reservation {pk}", of=found.holder)
            _wake()


def _wake() -> None:
    """Schedulers look at what is reserved once this is committed."""
    transaction.on_commit(partial(hint, what="reservations"))


def may_end(user: User, reservation: Reservation) -> bool:
    """Who made it, whose it is, and admins."""
    theirs = reservation.user_id == user.pk or reservation.made_by == user.get_username()
    return theirs or rights_of(user).may(Deed.MANAGE)


def _holder(user: User, name: str, group: str) -> dict[str, Any]:
    if name and group:
        raise invalid("A reservation is of a person or of a group, not both.", "group")
    manages = rights_of(user).may(Deed.MANAGE)
    if group:
        found = Group.objects.filter(name=group).first()
        if found is None or not (manages or found.user_set.filter(pk=user.pk).exists()):
            raise invalid(f'You are in no group "{group[:64]}".' if not manages else "There is no such group.", "group")
        return {"group": found}
    if name and name != user.get_username():
        if not manages:
            raise forbidden("Only an admin may reserve for others.", "user")
        return {"user": account_that_launches(name)}
    return {"user": user}


def _require_allowance(user: User, cards: Sequence[Gpu], size: int | None, spans: Spans, now: datetime) -> None:
    limits = allowances.limits_of(user)
    most = USUAL_OPEN if limits.reservations is None else limits.reservations
    days = USUAL_DAYS if limits.reserved_days is None else limits.reserved_days
    theirs = list(Reservation.objects.open(now).filter(made_by=user.get_username()).prefetch_related("cards__gpu"))
    if len(theirs) >= most:
        raise _over("", f"You have {len(theirs)} reservations, and may have {most} at once.")
    if spans[-1][1] > now + timedelta(days=days):
        raise _over("starts", f"You may reserve {days} days ahead; this ends on {spans[-1][1]:%Y-%m-%d %H:%M} UTC.")
    if limits.gpus is not None and (refused := [card for card in cards if card.uuid not in limits.gpus]):
        raise _over("gpus", f"You may not use GPU {refused[0].index}.")
    if limits.reserved_gib_hours is not None:
        before = sum(_gib_hours([c.gpu for c in each.cards.all()], each.gpu_memory, each.spans, now) for each in theirs)
        more = _gib_hours(cards, size, spans, now)
        if before + more > limits.reserved_gib_hours:
            raise _over("", f"This is {more:.1f} GiB·hours; you have reserved {before:.1f} and may reserve "
                            f"{limits.reserved_gib_hours:g}.")  # fmt: skip


def _gib_hours(cards: Iterable[Gpu], size: int | None, spans: Spans, now: datetime) -> float:
    """Of what is still to come."""
    seconds = sum((ends - max(begins, now)).total_seconds() for begins, ends in spans if ends > now)
    return sum(card.most if size is None else size for card in cards) * seconds / GIB_HOUR


def _over(field: str, message: str) -> Problem:
    return Problem("over_allowance", message, 403, field)


def _audit_detail(made: Reservation, cards: Sequence[Gpu]) -> dict[str, Any]:
    fields = ("gpu_memory", "starts", "zone", "minutes", "repeat", "times", "if_short", "note")
    return {"of": made.holder, "gpus": [card.uuid for card in cards], **{name: getattr(made, name) for name in fields}}


# ---- whether it fits ----------------------------------------------------------------------------------------------


def _choose(made: Reservation, asked: int | list[str], node: str, spans: Spans, now: datetime) -> list[Gpu]:
    """The GPUs that it is of, all on one node. Within a transaction that keeps them locked. Raises Problem."""
    there = Gpu.objects.filter(present=True, node__removed_at=None).order_by("pk")
    if node:
        there = there.filter(node__name=node)
    if isinstance(asked, list):
        there = there.filter(uuid__in=asked)
    cards = list(there.select_for_update(of=("self",), no_key=True).select_related("node"))
    if isinstance(asked, list) and len(cards) < len(set(asked)):
        raise invalid("One of these GPUs is not here.", "gpus")
    count = len(cards) if isinstance(asked, list) else asked
    taken = _taken(cards, made, now)
    why = {card: _why_not(card, made, spans, taken[card.pk]) or _cannot_move(card, made, spans) for card in cards}
    if isinstance(asked, list):
        if len({card.node_id for card in cards}) > 1:
            raise invalid("The GPUs of a reservation are on one node.", "gpus")
        if said := next(filter(None, why.values()), ""):
            raise conflict(said, code="reserved")
        return cards
    by_node: dict[int, list[Gpu]] = {}
    for card in sorted(cards, key=lambda card: (len(taken[card.pk]), card.pk)):
        if not why[card]:
            by_node.setdefault(card.node_id, []).append(card)
    fitting = next((its[:count] for its in by_node.values() if len(its) >= count), None)
    if fitting is None:
        said = next(filter(None, why.values()), f"There are no {count} GPUs on one node.")
        raise conflict(said if count == 1 else f"No node has {count} GPUs with room. {said}", code="reserved")
    return fitting


def _taken(cards: Sequence[Gpu], made: Reservation, now: datetime) -> dict[int, list[Taken]]:
    """What of each GPU is reserved, or held by others that cannot be moved."""
    found: dict[int, list[Taken]] = {card.pk: [] for card in cards}
    for each in Reservation.objects.open(now).filter(cards__gpu__in=cards).distinct().whole():
        for mine in each.cards.all():
            if mine.gpu_id in found:
                size = mine.gpu.most if each.gpu_memory is None else each.gpu_memory
                people = people_of(each)
                found[mine.gpu_id] += [Taken(*span, size, each.holder, people) for span in each.spans]
    if made.if_short == Short.SHORT:
        for claim in immovable(cards):
            owner = claim.container.owner.get_username()
            if owner not in people_of(made):
                ends = claim.container.ends_by or datetime.max.replace(tzinfo=now.tzinfo)
                by = f"{claim.container.name} of {owner}, which cannot be moved"
                found[claim.gpu_id].append(Taken(now, ends, claim.quota, by, owner=owner))
    return found


def immovable(cards: Iterable[Gpu]) -> Iterable[Claim]:
    """Of live containers whose memory cannot be taken: guaranteed, opted out, or of a program that cannot be moved."""
    stays = Q(container__guaranteed=True) | Q(container__give_way=False) | ~Q(container__cannot_move="")
    stays |= ~Q(gpu__node__cannot_swap="")
    live = Claim.objects.filter(stays, gpu__in=cards, container__finished_at=None)
    return live.select_related("container__owner").exclude(container__started_at=None)


def _cannot_move(card: Gpu, made: Reservation, spans: Spans) -> str:
    """Why others cannot be moved out of its way in time; empty: they can, or end."""
    if made.if_short == Short.END:
        return ""
    size = card.most if made.gpu_memory is None else made.gpu_memory
    return host_memory.why_not(card, size, [begins for begins, _ in spans], people_of(made), immovable([card]))


def _why_not(card: Gpu, made: Reservation, spans: Spans, taken: Sequence[Taken]) -> str:
    size = card.most if made.gpu_memory is None else made.gpu_memory
    if size > card.most:
        return f"GPU {card.index} of {card.node.name} has {format_size(card.most)}; this needs {format_size(size)}."
    for begins, ends in spans:
        most, by = worst(taken, begins, ends)
        if most + size > card.most:
            names = list(dict.fromkeys(each.by for each in by))
            whose = ", ".join(names[:NAMED] + ([f"{len(names) - NAMED} more"] if len(names) > NAMED else []))
            return (
                f"From {begins:%Y-%m-%d %H:%M} UTC, {format_size(most)} of the {format_size(card.most)} of GPU "
                f"{card.index} of {card.node.name} is taken by {whose}; this needs {format_size(size)}."
            )
    return ""


# ---- who has it when ----------------------------------------------------------------------------------------------


def people_of(reservation: Reservation) -> frozenset[str]:
    """The user names of those who have a right to it now."""
    if reservation.user is not None:
        return frozenset([reservation.user.get_username()] if reservation.user.is_active else [])
    assert reservation.group is not None
    members = reservation.group.user_set.filter(is_active=True)
    return frozenset(members.values_list("username", flat=True))


@dataclass(frozen=True, slots=True)
class Due:
    """A part of a reservation that a scheduler is to keep: one GPU, one time. `size`: bytes; None: all of the GPU."""

    row: int  # of ReservedGpu
    id: str
    gpu: str  # UUID
    size: int | None
    people: frozenset[str]
    begins: datetime
    ends: datetime
    ends_others: bool


def due(gpus: Sequence[int], now: datetime, until: datetime, begun: Mapping[int, datetime]) -> list[Due]:
    """What is in force on these GPUs now, or begins before `until`. For a scheduler.

    `begun`: of those that it has in force (by `Due.row`), when they began: whatever the date is by now, they are so
    until it knows that they are over, or a person ends them. Times of a series without a gap between them are one: at
    the moment between two of them nobody else is to get what is kept.
    """
    known = Reservation.objects.filter(Q(cards__in=list(begun)) | Q(pk__in=Reservation.objects.open(now).values("pk")))
    found = []
    for each in known.filter(cards__gpu__in=gpus).distinct().whole():
        cards = [card for card in each.cards.all() if card.gpu_id in gpus]
        since = {begun[card.pk] for card in cards if card.pk in begun}
        spans, people = each.spans, people_of(each)
        first = next((span for span in spans if span[0] in since), None) or each.next_span(now)
        if first is None or first[0] > until or not people:
            continue
        begins, ends = first
        for span in spans:
            ends = span[1] if span[0] == ends else ends
        name, ends_others = f"{each}, {begins:%m-%d %H:%M}", each.if_short == Short.END
        found += [
            Due(card.pk, name, card.gpu.uuid, each.gpu_memory, people, begins, ends, ends_others) for card in cards
        ]
    return found


def theirs(user: User, now: datetime) -> Iterator[Reservation]:
    """Those that a person has a right to."""
    yield from Reservation.objects.open(now).filter(Q(user=user) | Q(group__user=user)).distinct().whole()


def of_others(owner: str, lasts: float | None) -> dict[str, int]:
    """GPU (UUID) → the most bytes that are reserved for others than this person at one moment of the next `lasts`
    seconds, or of a day: what a choice of GPUs reckons with. As scheduler/core/reserved has it for a scheduler."""
    now = timezone.now()
    ahead = PLACED_AHEAD if lasts is None else min(PLACED_AHEAD, timedelta(seconds=lasts))
    taken: dict[str, list[Taken]] = {}
    for each in Reservation.objects.open(now).whole():
        if (people := people_of(each)) and owner not in people:
            for card in each.cards.all():
                size = card.gpu.most if each.gpu_memory is None else each.gpu_memory
                taken.setdefault(card.gpu.uuid, []).extend(Taken(*span, size) for span in each.spans)
    return {uuid: worst(its, now, now + ahead)[0] for uuid, its in taken.items()}


def containers_in(reservation: Reservation) -> bool:
    """Whether a container of its people is on one of its GPUs."""
    cards = [card.gpu_id for card in reservation.cards.all()]
    live = Container.objects.live().filter(claims__gpu__in=cards, owner__username__in=people_of(reservation))
    return live.exclude(started_at=None).exists()
