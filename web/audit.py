"""The audit log: append-only, hash-chained.

Everything that is appended together, be it one sign-in or two thousand allocation events, is one *seal*: a keyed hash
(HMAC-SHA-256, key from SECRET_KEY) over the seal before it and over every row that points to it. Sealing a batch and
not a row keeps the cost of the chain at one hash and one small row a flush. `verify` recomputes it all: a row that was
changed, added or removed breaks the hash of its seal; a seal that was removed leaves a gap in the numbers, or, at the
end, disagrees with `Chain`. The key means that write access to the database alone does not suffice to forge a seal. It
does suffice to cut off the end, `Chain` included: against that, note `head` elsewhere now and then and let `verify`
look for it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from web.models import AllocationEvent, AuditEntry, Chain, Seal

_origin: ContextVar[str] = ContextVar("gpushare_origin", default="")


@contextmanager
def origin(address: str) -> Iterator[None]:
    """While inside, what is recorded is told to have come from `address`."""
    token = _origin.set(address[:64])
    try:
        yield
    finally:
        _origin.reset(token)


def record(actor: str, action: str, subject: object = "", **detail: Any) -> None:
    """Appends one entry about something a person did or tried to do."""
    entry = AuditEntry(
        at=timezone.now(),
        action=action,
        actor=actor[:150],
        address=_origin.get(),
        subject=str(subject)[:255],
        detail=detail,
    )
    append(entries=[entry])


def append(events: Sequence[AllocationEvent] = (), entries: Sequence[AuditEntry] = ()) -> None:
    """Writes these rows and seals them, in one transaction, in their order."""
    if not events and not entries:
        return
    with transaction.atomic():
        # The row lock makes appends take turns (SQLite's IMMEDIATE transactions do so anyway).
        chain, _ = Chain.objects.select_for_update().get_or_create(id=1)
        seal = Seal(number=chain.number + 1, at=timezone.now(), rows=len(events) + len(entries), previous=chain.hash)
        seal.hash = _hash(_keys()[0], seal, events, entries)
        seal.save(force_insert=True)
        for event in events:
            event.pk, event.seal = None, seal  # a batch that is tried again after a rollback is numbered anew
        for entry in entries:
            entry.pk, entry.seal = None, seal
        AllocationEvent.objects.bulk_create(events)
        AuditEntry.objects.bulk_create(entries)
        Chain.objects.filter(id=1).update(number=seal.number, hash=seal.hash)


def verify(known: tuple[int, str] | None = None) -> tuple[int, list[str]]:
    """How many seals hold, and every fault that was found, as sentences. `known`: a seal's number and hash noted
    earlier. What is appended meanwhile is left for the next time."""
    head = Chain.objects.filter(id=1).first() or Chain()
    sound, expected, previous, faults = 0, 1, "0" * 64, []
    for seal, events, entries in _sealed(head.number):
        if seal.number != expected:
            faults.append(f"Gap: seal {expected} is missing; next is {seal.number}.")
        elif seal.previous != previous:
            faults.append(f"Seal {seal.number} does not follow the one before it.")
        if seal.rows != len(events) + len(entries):
            faults.append(f"Seal {seal.number} covers {seal.rows} rows, found {len(events) + len(entries)}.")
        if not any(hmac.compare_digest(_hash(key, seal, events, entries), seal.hash) for key in _keys()):
            faults.append(f"Seal {seal.number} of {seal.at:%Y-%m-%d %H:%M:%S} is broken: it or its rows were changed.")
        else:
            sound += 1
        expected, previous = seal.number + 1, seal.hash
    if (head.number, head.hash) != (expected - 1, previous):
        faults.append(f"The chain should end with seal {head.number} as it was, but ends with {expected - 1}.")
    last = Seal.objects.aggregate(last=Max("number"))["last"] or 0
    if last > (Chain.objects.filter(id=1).first() or Chain()).number:  # read in this order: appending goes on
        faults.append(f"Seal {last} lies beyond the end of the chain.")
    if known is not None and not Seal.objects.filter(number=known[0], hash=known[1]).exists():
        faults.append(f"Seal {known[0]} is not what it was when its hash was noted.")
    return sound, faults


def head() -> tuple[int, str]:
    """The last seal's number and hash: note them elsewhere, and a chain that was cut short later cannot pass."""
    chain = Chain.objects.filter(id=1).first() or Chain()
    return chain.number, chain.hash


def _sealed(last: int) -> Iterator[tuple[Seal, list[AllocationEvent], list[AuditEntry]]]:
    """Each seal up to `last` with its rows, read once and in order: a merge of three sorted streams."""
    events = _by_seal(AllocationEvent.objects.filter(seal__lte=last).order_by("seal_id", "id").iterator())
    entries = _by_seal(AuditEntry.objects.filter(seal__lte=last).order_by("seal_id", "id").iterator())
    event, entry = next(events, None), next(entries, None)
    for seal in Seal.objects.filter(number__lte=last).order_by("number").iterator():
        own_events: list[AllocationEvent] = []
        own_entries: list[AuditEntry] = []
        while event is not None and event[0] <= seal.number:
            own_events, event = event[1], next(events, None)
        while entry is not None and entry[0] <= seal.number:
            own_entries, entry = entry[1], next(entries, None)
        yield seal, own_events, own_entries


def _by_seal(rows: Iterable[Any]) -> Iterator[tuple[int, list[Any]]]:
    for number, group in groupby(rows, key=lambda row: int(row.seal_id)):
        yield number, list(group)


def _keys() -> list[bytes]:
    """The key in use first, then those of SECRET_KEYs that were replaced."""
    secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return [hashlib.sha256(b"gpushare audit " + str(secret).encode()).digest() for secret in secrets]


def _hash(key: bytes, seal: Seal, events: Sequence[AllocationEvent], entries: Sequence[AuditEntry]) -> str:
    digest = hmac.new(key, _line(seal.previous, seal.number, _time(seal.at), seal.rows), hashlib.sha256)
    for event in events:
        digest.update(_event_line(event))
    for entry in entries:
        digest.update(_entry_line(entry))
    return digest.hexdigest()


def _event_line(event: AllocationEvent) -> bytes:
    return _line(
        _time(event.at), str(event.kind), str(event.container_id), event.gpu_id, event.pid, int(event.bytes),
        event.used_after, float(event.waited), event.policy, event.detail,
    )  # fmt: skip


def _entry_line(entry: AuditEntry) -> bytes:
    return _line(_time(entry.at), entry.action, entry.actor, entry.address, entry.subject, entry.detail)


def _line(*fields: Any) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
