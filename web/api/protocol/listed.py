"""The lists that every screen asks for, each answered from one body that is made once a change of the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from rest_framework.generics import GenericAPIView
from rest_framework.renderers import JSONRenderer

from web.kept import kept


def listed(view: GenericAPIView[Any], rows: Callable[[], QuerySet[Any]], reader: object = None) -> HttpResponse:
    """A page of these rows. `rows` judges the query as well; `reader` is for whom, if not all are shown the same."""

    def make() -> bytes:
        page = view.paginate_queryset(rows())
        answer = view.get_paginated_response(view.get_serializer(page, many=True).data)
        return JSONRenderer().render(answer.data)

    request = view.request
    asked = request.scheme, request.get_host(), request.get_full_path()  # the links to other pages name all of it
    return HttpResponse(kept(("list", reader, *asked), make), "application/json")
