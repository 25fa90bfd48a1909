"""The lists that every screen asks for: made once a change of the database, and of them only what changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.http import HttpResponse
from rest_framework.generics import GenericAPIView
from rest_framework.renderers import JSONRenderer

from web.api.protocol.rows import Row, Rows
from web.http.repeated import may_repeat
from web.kept import Recent, kept
from web.models import Token

SHARED = 100  # rows of a page that is kept for all readers, as many as are usual: they take more room than their JSON

_lists: Recent[Hashable, Rows] = Recent(64)


def listed(
    view: GenericAPIView[Any],
    rows: Callable[[], QuerySet[Any]],
    parts: Prefetch[str] | None = None,
    reader: Hashable = None,
) -> HttpResponse:
    """A page of these rows, each with its `parts`. `rows` judges the query as well, and depends on nothing else.

    `reader` is for whom, if not all are shown the same: the serializer has a form for each.
    """
    request = view.request
    asked = request.scheme, request.get_host(), request.get_full_path()  # the links to other pages name all of these

    def read() -> tuple[bytes, list[Row]]:
        """What is the same for all readers: how the answer begins, and the rows."""
        found = _lists.of(asked[-1], lambda: Rows(type(view), rows(), parts))
        page: Any = view.paginate_queryset(found)  # type: ignore[arg-type]
        frame = JSONRenderer().render(view.get_paginated_response([]).data)
        return frame.removesuffix(b"[]}"), list(page)

    def make() -> bytes:
        begin, page = kept(("rows", *asked), read) if _is_shared(view) else read()
        serializer: Any = view.get_serializer()
        serializer.prepare([row.record for row in page if row.is_new(serializer)])
        return begin + b"[" + b",".join(row.json(serializer) for row in page) + b"]}"

    if isinstance(request.auth, Token):
        may_repeat(request._request, request.auth)
    return HttpResponse(kept(("list", reader, *asked), make), "application/json")


def _is_shared(view: GenericAPIView[Any]) -> bool:
    return int(view.paginator.get_page_size(view.request)) <= SHARED  # type: ignore[union-attr]
