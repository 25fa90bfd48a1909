"""Rows of a list, each kept as it was last answered, so that only those that changed are made anew.

The database is asked each time, and answers in values of its own, of which Django has not made records yet. What a row
looks like as JSON follows from these values, and from which of its forms the reader may see; it is kept for exactly
these values and this form. So nobody is shown anything old, and nobody what is for another. To ask and compare takes a
tenth of the time that it takes to make records and then JSON.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from django.db import connection
from django.db.models import Field, Prefetch, QuerySet
from rest_framework.renderers import JSONRenderer

from web.api.protocol.quick import Quick
from web.kept import Recent

Raw = tuple[Any, ...]  # a row in the database's own values

KEPT = 2000  # rows
LARGEST = 1 << 14  # characters of a row, and of its JSON, that are kept; a command may have a million


class Compiled:
    """A query whose SQL is made once, which takes Django longer than the answer takes the database."""

    def __init__(self, queryset: QuerySet[Any]) -> None:
        self._queryset = queryset.prefetch_related(None)
        self._compiler: Any = queryset.query.get_compiler(queryset.db)
        self._sql = self._compiler.as_sql()

    def ask(self) -> list[Raw]:
        with connection.cursor() as cursor:
            cursor.execute(*self._sql)
            rows: list[Raw] = cursor.fetchall()
        return rows

    def record(self, raw: Raw) -> Any:
        """What the queryset makes of this row: it is asked, with the database's answer put into its hands."""
        answered = copy(self._compiler)
        answered.execute_sql = lambda *_, **__: [[raw]]
        queryset = self._queryset.all()
        queryset.query.get_compiler = lambda *_, **__: answered  # type: ignore[method-assign]
        (record,) = queryset
        return record

    def place(self, field: Field[Any, Any]) -> int:
        """Where in a row this field of the model stands."""
        columns = [column for column, *_ in self._compiler.select]
        return next(place for place, column in enumerate(columns) if getattr(column, "target", None) is field)


class CompiledWithParts(Compiled):
    """Each row ends with a tuple of those that belong to it, which `prefetch_related` would read."""

    def __init__(self, queryset: QuerySet[Any], parts: Prefetch[str]) -> None:
        super().__init__(queryset)
        self._key = self.place(queryset.model._meta.pk)
        self._name = parts.prefetch_to
        self._owner: Any = queryset.model._meta.get_field(self._name).remote_field
        self._all: Any = parts.queryset
        self._belonging: Recent[Raw, Compiled] = Recent(1)

    def ask(self) -> list[Raw]:
        rows = super().ask()
        keys = tuple(row[self._key] for row in rows)
        if not keys:
            return []
        self._parts = parts = self._belonging.of(keys, lambda: self._of(keys))
        owner = parts.place(self._owner)
        found = defaultdict(list)
        for part in parts.ask():
            found[part[owner]].append(part)
        return [(*row, tuple(found[key])) for row, key in zip(rows, keys, strict=True)]

    def record(self, raw: Raw) -> Any:
        record = super().record(raw)
        record._prefetched_objects_cache = {self._name: [self._parts.record(part) for part in raw[-1]]}
        return record

    def _of(self, keys: Raw) -> Compiled:
        return Compiled(self._all.filter(**{f"{self._owner.name}__in": keys}))


@dataclass(eq=False, slots=True)
class Row:
    """What was made of a row: its record, not to be changed, and its JSON in each form that somebody was shown."""

    record: Any
    _json: dict[Hashable, bytes] = field(default_factory=dict)

    def is_new(self, serializer: Quick) -> bool:
        """To who is shown this form of it."""
        return serializer.form(self.record) not in self._json

    def json(self, serializer: Quick) -> bytes:
        form = serializer.form(self.record)
        if form in self._json:
            return self._json[form]
        made: bytes = JSONRenderer().render(serializer.to_representation(self.record))
        if len(made) <= LARGEST:
            self._json[form] = made
        return made


_kept: Recent[Hashable, Row] = Recent(KEPT)


class Rows:
    """What a paginator asks of a queryset. All of one `kind` have the same columns; `parts` belong to each row."""

    def __init__(self, kind: Hashable, queryset: QuerySet[Any], parts: Prefetch[str] | None = None) -> None:
        self._kind = kind
        self._queryset = queryset
        self._parts = parts
        self._counting = queryset.order_by().values("pk").query.sql_with_params()
        self._pages: Recent[Hashable, Compiled] = Recent(1)

    def count(self) -> int:
        sql, parameters = self._counting
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM ({sql}) AS listed", parameters)
            return int(cursor.fetchone()[0])

    def __getitem__(self, page: slice) -> list[Row]:
        def compiled() -> Compiled:
            part = self._queryset[page]
            return Compiled(part) if self._parts is None else CompiledWithParts(part, self._parts)

        if page.start >= page.stop:
            return []  # Django writes no SQL for that
        query = self._pages.of((page.start, page.stop), compiled)
        return [self._row(query, raw) for raw in query.ask()]

    def _row(self, query: Compiled, raw: Raw) -> Row:
        row = _kept.get((self._kind, raw))
        if row is None:
            row = Row(query.record(raw))
            if _size(raw) <= LARGEST:
                _kept.put((self._kind, raw), row)
        return row


def _size(raw: Raw) -> int:
    """Characters, about."""
    return sum(
        len(value) if isinstance(value, str) else _size(value) if isinstance(value, tuple) else 8 for value in raw
    )
