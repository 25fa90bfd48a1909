"""One batch of what a scheduler writes, into the database: in one transaction, and once, however often it is tried."""

from datetime import datetime
from uuid import UUID

from django.db import models, transaction
from django.db.models.functions import Greatest, Now

from scheduler.store import event_log, node_lease
from scheduler.store.database import Here
from scheduler.store.journal import Numbered
from scheduler.store.node_snapshot import Rows
from web import audit
from web.inserting import insert
from web.models import AllocationEvent, Claim, Container, Node, Usage, UsageHour, UsageSample
from web.models.states import LOST

Batch = tuple[Rows, list[Numbered], list[UsageSample]]

MADE = (Usage, UsageHour)  # with their first record
KEYS: dict[type[models.Model], tuple[str, ...]] = {
    Claim: ("container_id", "gpu_id"),
    Usage: ("gpu_id", "person"),
    UsageHour: ("gpu_id", "person", "hour"),
}  # of what is known by another key than its own
ONCE = (AllocationEvent.Kind.STARTED, AllocationEvent.Kind.ENDED)  # to each container, on each of its GPUs
OF_AN_END = ("finished_at", "exit_code", "reason")  # what it tells of itself


def write_batch(rows: Rows, events: list[Numbered], samples: list[UsageSample], here: Here, numbering: int) -> None:
    """While this node is ours (node_lease.py), which nobody can take before all of this is written.

    `numbering`: the key of the node that numbers its events; 0: they are new without looking. Raises NameTaken.
    """
    with transaction.atomic():
        if here.node:
            node_lease.require(here)
        for (model, pk), fields in rows.items():
            if model is Node and "seen_at" in fields:
                fields = {**fields, "seen_at": Now()}
            key = dict(zip(KEYS[model], pk, strict=True)) if model in KEYS else {"pk": pk}
            found = model._default_manager.filter(**key)
            if model is Container:  # what was lost with its node, while that was away, stays so; its events come
                found = found.exclude(reason=LOST)
                if numbering and fields.get("finished_at") and _had_ended(found, fields["finished_at"]):
                    fields = {name: value for name, value in fields.items() if name not in OF_AN_END}
            if model is UsageHour:  # after a start without the database less may be known of it than was written before
                fields = {name: Greatest(models.F(name), models.Value(value)) for name, value in fields.items()}
            if not found.update(**fields) and model in MADE:
                model._default_manager.create(**key, **rows[model, pk])
        new = [each.event for each in (_unwritten(numbering, events) if numbering and events else events)]
        new = _not_repeated(new)  # a death between two batches leaves an event whose row is not written yet
        insert(UsageSample, _not_written(samples))
        audit.append(new)  # last: until this is committed, nobody else can append
    event_log.tell(new)


def _unwritten(node: int, events: list[Numbered]) -> list[Numbered]:
    """Those that the database has not had before; from now on it has had all of them."""
    here, last = Node.objects.filter(pk=node), events[-1].number
    if here.filter(last_event__lt=events[0].number).update(last_event=last):
        return events
    written = here.values_list("last_event", flat=True).get()
    here.filter(last_event__lt=last).update(last_event=last)
    return [each for each in events if each.number > written]


def _not_written(samples: list[UsageSample]) -> list[UsageSample]:
    """Without those of an earlier try that was committed, though its answer was lost: only a try gives them keys."""
    tried = [each.pk for each in samples if each.pk]
    found = UsageSample.objects.filter(pk__in=tried).values_list("pk", "gpu", "container", "at") if tried else ()
    there = set(found)
    # A reported sample has its container's key as text.
    keys = [each.container_id and UUID(str(each.container_id)) for each in samples]
    return [each for each, key in zip(samples, keys, strict=True) if (each.pk, each.gpu_id, key, each.at) not in there]


# A scheduler that starts without the database knows of its containers what this host knew (node_snapshot.py). That is
# kept after the database has heard it, and not synced: so who was killed in between, or had a power cut, finds a start
# or an end anew that the database has. The first one stays.


def _not_repeated(events: list[AllocationEvent]) -> list[AllocationEvent]:
    ids = {event.container_id for event in events if event.kind in ONCE}
    said = AllocationEvent.objects.filter(kind__in=ONCE, container__in=ids).exclude(detail=LOST)
    known = set(said.order_by().values_list("kind", "container", "gpu")) if ids else set()
    return [event for event in events if (event.kind, UUID(str(event.container_id)), event.gpu_id) not in known]


def _had_ended(found: models.QuerySet[models.Model], at: datetime) -> bool:
    return found.filter(finished_at__isnull=False).exclude(finished_at=at).exists()


def parts_of(rows: Rows, events: list[Numbered], samples: list[UsageSample]) -> list[Batch]:
    """A batch as batches of one, in the order of a flush; one row as its fields, the moment of an outcome last: who
    waits for that reads the rest as well."""
    if len(rows) == 1 and not events and not samples:
        ((row, fields),) = rows.items()
        return [
            ({row: {name: fields[name]}}, [], [])
            for name in sorted(fields, key=("done_at", "finished_at").__contains__)
        ]
    return [
        *(({}, [event], []) for event in events),
        *(({}, [], [sample]) for sample in samples),
        *(({row: fields}, [], []) for row, fields in rows.items()),
    ]
