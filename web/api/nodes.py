"""nodes/: the hosts that run a scheduler. nodes/join/: one more."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import GenericAPIView, ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from web.api.answers import NodeAnswer
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery
from web.models import Node
from web.services.joining import invitations
from web.spec.joining import JoinSpec


class Nodes(ListAPIView[Node]):
    """The hosts that run a scheduler, with engine, policy and driver, and whether the scheduler is alive."""

    queryset = Node.objects.order_by("name")
    serializer_class = NodeAnswer

    @extend_schema(parameters=[PageQuery], responses={200: NodeAnswer(many=True), **ERRORS})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        PageQuery.of(request)
        return self.list(request, *args, **kwargs)


class JoinAnswer(serializers.Serializer[Any]):
    """The settings of a node, by their names."""

    GPUSHARE_NODE = serializers.CharField()
    DATABASE_URL = serializers.CharField(help_text="With a role of the node's own.")
    REDIS_URL = serializers.CharField(help_text="Empty: there is none.")
    GPUSHARE_AUDIT_KEY = serializers.CharField(help_text="With which it seals what happens on it.")


class Join(GenericAPIView[Node]):
    """A host joins, with the token that `manage.py node add` printed: once, and within an hour.

    403: the token is not good, or is another node's. 409: the release or the database's schema differs, or the host
    could not reach the database. 429: too many failed attempts.
    """

    authentication_classes = []
    permission_classes = []
    serializer_class = JoinAnswer

    @extend_schema(request=JoinSpec, responses={200: JoinAnswer, **ERRORS})
    def post(self, request: Request) -> Response:
        return Response(invitations.join(request.data, str(request.META.get("REMOTE_ADDR") or "")))
