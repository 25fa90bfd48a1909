"""A batch with something in it that the database will never take, taken apart: the rest of it is written."""

from __future__ import annotations

from scheduler.store.async_journal import Numbered, Rows
from web.models import UsageSample

Batch = tuple[Rows, list[Numbered], list[UsageSample]]


def split_batch(rows: Rows, events: list[Numbered], samples: list[UsageSample]) -> list[Batch]:
    """A batch as batches of one, in the order of a flush; one row as its fields, the moment of an outcome last."""
    if len(rows) == 1 and not events and not samples:
        ((row, fields),) = rows.items()
        return [({row: {name: fields[name]}}, [], []) for name in sorted(fields, key=_is_end)]
    return [
        *(({}, [event], []) for event in events),
        *(({}, [], [sample]) for sample in samples),
        *(({row: fields}, [], []) for row, fields in rows.items()),
    ]


def _is_end(field: str) -> bool:
    """Whether this field tells that something is over. It is written last: who waits for it reads the rest as well."""
    return field in ("done_at", "finished_at")
