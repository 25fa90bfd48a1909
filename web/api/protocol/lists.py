"""Pages of lists. What is the same for all readers is made once for each change of the database."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.http import HttpResponse
from rest_framework.generics import GenericAPIView
from rest_framework.renderers import JSONRenderer

from web.api.rows import Kind
from web.http.response_cache import cached

LARGEST = 100  # rows of a page that is cached, as many as are usual
LARGEST_BYTES = 1 << 18  # of its rows: a row is as long as its owner made it


class Row(NamedTuple):
    key: Any
    owner: int | None
    json: bytes


def list_response(
    view: GenericAPIView[Any],
    kind: Kind,
    rows: Callable[[], QuerySet[Any]],
    complete: Callable[[Sequence[Row]], Iterable[bytes]] | None = None,
) -> HttpResponse:
    """A page of these rows. `rows` checks the query, too, and depends on nothing but the address.

    `complete` is called for each request: the rows' JSON with what this reader may see.
    """
    request = view.request

    def make() -> tuple[bytes, list[Row]]:
        found: Any = view.paginate_queryset(rows().values(*kind.columns))
        begin = to_json(view.get_paginated_response([]).data).removesuffix(b"[]}")
        answers = zip(found, kind.answers(found), strict=True)
        return begin, [Row(row.get("id"), row.get("owner_id"), to_json(answer)) for row, answer in answers]

    # Links to other pages name all of these.
    key = request.scheme, request.get_host(), request.get_full_path()
    small = (view.paginator.get_page_size(request) or 0) <= LARGEST  # type: ignore[union-attr]
    begin, page = cached(key, make, _is_small) if small else make()
    texts = complete(page) if complete else [row.json for row in page]
    return HttpResponse(begin + b"[" + b",".join(texts) + b"]}", "application/json")


def _is_small(made: tuple[bytes, list[Row]]) -> bool:
    return sum(len(row.json) for row in made[1]) <= LARGEST_BYTES


def to_json(data: Any) -> bytes:
    made: bytes = JSONRenderer().render(data)
    return made
