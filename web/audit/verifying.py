"""Recomputing the chain: which seals hold, and every fault as a sentence. Each row is read once, in order."""

import hmac
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from django.db.models import Exists, F, Max, OuterRef, QuerySet

from web.audit import seals
from web.models import AllocationEvent, AuditEntry, Chain, Seal

Events = list[tuple[Any, int]]  # an AllocationEvent, and who owned its container
Each = Callable[[], None]


def verify(*known: tuple[int, str] | None, each: Each = lambda: None) -> tuple[int, list[str]]:
    """How many seals hold, and every fault that was found, as sentences. `known`: seals' numbers and hashes noted
    earlier. What is appended meanwhile is left for the next time. `each` is called for each row; what it raises ends
    it."""
    head = Chain.objects.filter(id=1).first() or Chain()
    sound, expected, previous = 0, 1, seals.BEGINNING
    faults: list[str] = []
    for seal, events, entries in _sealed(head.number, each):
        if seal.number != expected:
            faults.append(f"Gap: seal {expected} is missing; next is {seal.number}.")
        elif seal.previous != previous:
            faults.append(f"Seal {seal.number} does not follow the one before it.")
        if seal.rows != len(events) + len(entries):
            faults.append(f"Seal {seal.number} covers {seal.rows} rows, found {len(events) + len(entries)}.")
        if _holds(seal, events, entries):
            sound += 1
        else:
            by = f" by the node {seal.node}" if seal.node else ""
            faults.append(
                f"Seal {seal.number}{by} of {seal.at:%Y-%m-%d %H:%M:%S} is broken: it or its rows were changed."
            )
        expected, previous = seal.number + 1, seal.hash
    if (head.number, head.hash) != (expected - 1, previous):
        faults.append(f"The chain should end with seal {head.number} as it was, but ends with {expected - 1}.")
    last = Seal.objects.aggregate(last=Max("number"))["last"] or 0
    if last > (Chain.objects.filter(id=1).first() or Chain()).number:  # read in this order: appending goes on
        faults.append(f"Seal {last} lies beyond the end of the chain.")
    faults += [*_unsealed(AllocationEvent.objects.all()), *_unsealed(AuditEntry.objects.all())]
    for number, noted in filter(None, known):
        if number and not Seal.objects.filter(number=number, hash=noted).exists():
            faults.append(f"Seal {number} has changed since its hash was noted.")
    return sound, faults


def _holds(seal: Seal, events: Events, entries: list[AuditEntry]) -> bool:
    """One by a node's own key covers what happened on that node, and no deed of a person."""
    by_people = any(entry.actor not in seals.OF_NODES for entry in entries)
    if seal.node and (by_people or any(event.on != seal.node for event, _ in events)):
        return False
    return any(hmac.compare_digest(seals.digest(key, seal, events, entries), seal.hash) for key in seals.keys_for(seal))


def _events(last: int) -> QuerySet[Any]:
    """Each with its container's owner, and `on`: the name of its node."""
    named = {"owner": F("container__owner_id"), "on": F("container__node__name")}
    return AllocationEvent.objects.filter(seal__lte=last).annotate(**named)


def _unsealed(rows: QuerySet[Any]) -> Iterator[str]:
    """The database promises that there are none, but whoever writes it can take that promise away."""
    for row in rows.filter(~Exists(Seal.objects.filter(number=OuterRef("seal_id")))).order_by("id").iterator():
        kind = row._meta.verbose_name
        yield f"The {kind} {row.pk} of {row.at:%Y-%m-%d %H:%M:%S} has no seal: it was not written by this appliance."


def _sealed(last: int, each: Each) -> Iterator[tuple[Seal, Events, list[AuditEntry]]]:
    """Each seal up to `last` with its rows, read once and in order: a merge of three sorted streams."""
    events = _by_seal(_read(_events(last).order_by("seal_id", "id"), each))
    entries = _by_seal(_read(AuditEntry.objects.filter(seal__lte=last).order_by("seal_id", "id"), each))
    event, entry = next(events, None), next(entries, None)
    for seal in Seal.objects.filter(number__lte=last).order_by("number").iterator():
        own_events: Events = []
        own_entries: list[AuditEntry] = []
        while event is not None and event[0] <= seal.number:
            own_events = [(row, row.owner) for row in event[1]] if event[0] == seal.number else []
            event = next(events, None)
        while entry is not None and entry[0] <= seal.number:
            own_entries = entry[1] if entry[0] == seal.number else []
            entry = next(entries, None)
        yield seal, own_events, own_entries


def _read(rows: QuerySet[Any], each: Each) -> Iterator[Any]:
    for row in rows.iterator():
        each()
        yield row


def _by_seal(rows: Iterable[Any]) -> Iterator[tuple[int, list[Any]]]:
    for number, group in groupby(rows, key=lambda row: int(row.seal_id)):
        yield number, list(group)
