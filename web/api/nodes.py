"""nodes/: the hosts that run a scheduler."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from web.api.answers import NodeAnswer
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery
from web.models import Node


class Nodes(ListAPIView[Node]):
    """The hosts that run a scheduler, with engine, policy and driver, and whether the scheduler is alive."""

    queryset = Node.objects.order_by("name")
    serializer_class = NodeAnswer

    @extend_schema(parameters=[PageQuery], responses={200: NodeAnswer(many=True), **ERRORS})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        PageQuery.of(request)
        return self.list(request, *args, **kwargs)
