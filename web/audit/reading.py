"""The log as people read it: newest first, by time, person and the name of what it was done to."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from web.models import AuditEntry, Container

MOST_NAMESAKES = 500  # containers of one name that are looked for, the newest


@dataclass(frozen=True, slots=True)
class NamedEntry:
    """An entry, the name of what it was done to, and the container if it was one that is known."""

    entry: AuditEntry
    name: str
    container: str


def entries(person: str = "", name: str = "", start: datetime | None = None, end: datetime | None = None,
            action: str = "") -> QuerySet[AuditEntry]:  # fmt: skip
    """Those of `person`, about what is called `name`, in [start, end); by time, newest first."""
    found = AuditEntry.objects.order_by("-at", "-id")
    if person:
        found = found.filter(actor=person)
    if name:
        found = found.filter(subject__in=[name, *_containers_called(name)])
    if start is not None:
        found = found.filter(at__gte=start)
    if end is not None:
        found = found.filter(at__lt=end)
    return found.filter(action=action) if action else found


def page(found: QuerySet[AuditEntry], size: int, before: int | None = None) -> tuple[list[NamedEntry], int | None]:
    """`size` of them, older than the entry `before`, and the id that the next page is asked for with.

    By place in the order and not by number: the millionth page costs what the first does.
    """
    last = AuditEntry.objects.filter(pk=before).values_list("at", flat=True).first() if before is not None else None
    if last is not None:
        found = found.filter(at__lte=last).filter(Q(at__lt=last) | Q(pk__lt=before))
    rows = list(found[: size + 1])
    return _named(rows[:size]), rows[size - 1].pk if len(rows) > size else None


def _containers_called(name: str) -> list[str]:
    found = Container.objects.filter(name=name).order_by("-created_at").values_list("pk", flat=True)
    return [str(pk) for pk in found[:MOST_NAMESAKES]]


def _named(rows: list[AuditEntry]) -> list[NamedEntry]:
    ids = {row.subject for row in rows if _is_id(row.subject)}
    names = {str(pk): name for pk, name in Container.objects.filter(pk__in=ids).values_list("pk", "name")}
    return [NamedEntry(row, _name(row, names), row.subject if row.subject in names else "") for row in rows]


def _name(row: AuditEntry, names: dict[str, Any]) -> str:
    name = row.detail.get("name") if isinstance(row.detail, dict) else None
    return str(name) if name and isinstance(name, str) else names.get(row.subject, row.subject)


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
