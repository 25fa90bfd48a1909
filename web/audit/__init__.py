"""The audit log: append-only, hash-chained.

Everything that is appended together, be it one sign-in or two thousand allocation events, is one *seal*: a keyed hash
over the seal before it and over every row that points to it (`seals.py`). Sealing a batch and not a row keeps the cost
of the chain at one hash and one small row a flush. `verify` recomputes it all (`verifying.py`): a row that was changed,
added, removed, renumbered or given to somebody else breaks the hash of its seal, and a row without a seal is a fault; a
seal that was removed leaves a gap in the numbers, or, at the end, disagrees with `Chain`. Whoever writes the database
can set `Chain` back as well: against that stands the anchor, a file outside of it (`anchor.py`). What even so cannot be
found is described in docs/audit.md.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import transaction
from django.utils import timezone

from web.audit import seals
from web.audit.verifying import verify
from web.inserting import insert
from web.models import AllocationEvent, AuditEntry, Chain, Container, Seal

__all__ = ["append", "head", "origin", "record", "verify"]

_origin: ContextVar[str] = ContextVar("gpushare_origin", default="")


@contextmanager
def origin(address: str) -> Iterator[None]:
    """While inside, what is recorded comes from `address`."""
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
        node, key = seals.own_key()
        rows = len(events) + len(entries)
        seal = Seal(number=chain.number + 1, at=timezone.now(), rows=rows, node=node, previous=chain.hash)
        for event in events:
            event.pk, event.seal_id = None, seal.number  # a batch that is tried again after a rollback is numbered anew
        for entry in entries:
            entry.pk, entry.seal_id = None, seal.number
        insert(AllocationEvent, events)  # they have their ids from here on, which the seal covers
        AuditEntry.objects.bulk_create(entries)
        seal.hash = seals.digest(key, seal, _with_owners(events), entries)
        seal.save(force_insert=True)
        Chain.objects.filter(id=1).update(number=seal.number, hash=seal.hash)


def _with_owners(events: Sequence[AllocationEvent]) -> list[tuple[AllocationEvent, int]]:
    containers = Container.objects.filter(pk__in={event.container_id for event in events})
    owners = {str(pk): owner for pk, owner in containers.values_list("pk", "owner")} if events else {}
    # Of a container that is not there the database itself refuses an event, when the transaction ends.
    return [(event, owners.get(str(event.container_id), 0)) for event in events]


def head() -> tuple[int, str]:
    """The last seal's number and hash: note them elsewhere, and a chain that was cut short later cannot pass."""
    chain = Chain.objects.filter(id=1).first() or Chain()
    return chain.number, chain.hash
