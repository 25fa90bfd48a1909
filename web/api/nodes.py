"""nodes/: the hosts that run a scheduler: looked at, invited, drained, labelled, removed. nodes/join/: one joins."""

from collections.abc import Sequence
from typing import Any

from django.db.models import Count, QuerySet, Sum
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.generics import GenericAPIView, ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from web.api.answers import NodeAnswer
from web.api.protocol.access import body, person
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery, Query
from web.errors import not_found
from web.models import Claim, Gpu, Node
from web.services import nodes
from web.services.joining import invitations
from web.spec.nodes import JoinSpec, LabelsSpec, NodeNameSpec
from web.spec.requests import NoteSpec


def _nodes() -> QuerySet[Node]:
    return Node.objects.listed().defer("figures", "moved", "policies", "nearly_full").order_by("name")


def _with_sums(nodes: Sequence[Node]) -> Sequence[Node]:
    """With what their cards are together. Two queries, however many nodes there are."""
    there = Gpu.objects.filter(present=True, node__in=nodes).order_by().values_list("node")
    cards = {pk: sums for pk, *sums in there.annotate(Count("pk"), Sum("capacity"))}
    held = Claim.objects.filter(gpu__present=True, gpu__node__in=nodes, container__finished_at=None).order_by()
    promised = dict(held.values_list("gpu__node").annotate(Sum("quota")))
    for node in nodes:
        node.gpus_there, node.capacity = cards.get(node.pk, (0, 0))  # type: ignore[attr-defined]
        node.promised = promised.get(node.pk, 0)  # type: ignore[attr-defined]
    return nodes


class InvitationAnswer(serializers.Serializer[Any]):
    command = serializers.CharField(help_text="To run on the host as root. It contains the token.")


class Nodes(ListAPIView[Node]):
    """The hosts that run a scheduler, with engine, policy and driver, and whether the scheduler is alive."""

    queryset = Node.objects.none()
    serializer_class = NodeAnswer

    def get_queryset(self) -> QuerySet[Node]:
        return _nodes()

    @extend_schema(parameters=[PageQuery], responses={200: NodeAnswer(many=True), **ERRORS})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        PageQuery.of(request)
        page = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response(self.get_serializer(_with_sums(page), many=True).data)

    @extend_schema(request=NodeNameSpec, responses={201: InvitationAnswer, **ERRORS})
    def post(self, request: Request) -> Response:
        """Invites a host: the command with which it joins, once and within an hour. It is shown here and never again.

        For admins. One that this name was invited with before is good no more. 409: the database is a file of one host.
        """
        command = nodes.invite(person(request), NodeNameSpec.parse(body(request))["name"])
        return Response({"command": command}, status.HTTP_201_CREATED)


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


class RemoveQuery(Query):
    force = serializers.BooleanField(required=False, help_text="true: also with containers, which end as lost.")


class _OneNode(GenericAPIView[Node]):
    queryset = Node.objects.none()
    serializer_class = NodeAnswer

    def answer(self, name: str) -> Response:
        if (node := _nodes().filter(name=name).first()) is None:
            raise not_found(f'There is no node "{name[:64]}".')
        return Response(self.get_serializer(*_with_sums([node])).data)


class OneNode(_OneNode):
    @extend_schema(responses={200: NodeAnswer, **ERRORS})
    def get(self, request: Request, name: str) -> Response:
        """One node, as in the list of all. 404: there is none of this name, or it was removed."""
        Query.of(request)
        return self.answer(name)

    @extend_schema(request=LabelsSpec, responses={200: NodeAnswer, **ERRORS})
    def patch(self, request: Request, name: str) -> Response:
        """Sets `labels`, name → text; null takes one away, others stay. For admins."""
        nodes.label(person(request), name, LabelsSpec.parse(body(request))["labels"])
        return self.answer(name)

    @extend_schema(parameters=[RemoveQuery], responses={204: None, **ERRORS})
    def delete(self, request: Request, name: str) -> Response:
        """Removes one that is away and empty; its history stays, and a scheduler of its name brings it back.

        With `force=true` its containers end, in the records, as lost with their node. For admins. 409: its scheduler
        lives, or it fell silent with containers that may live.
        """
        nodes.remove(person(request), name, force=RemoveQuery.of(request).get("force", False))
        return Response(status=status.HTTP_204_NO_CONTENT)


class Drain(_OneNode):
    @extend_schema(request=NoteSpec, responses={200: NodeAnswer, **ERRORS})
    def post(self, request: Request, name: str) -> Response:
        """From now on it takes no new launches; what runs there goes on. For admins."""
        nodes.drain(person(request), name, **NoteSpec.parse(request.data))
        return self.answer(name)


class Undrain(_OneNode):
    @extend_schema(request=NoteSpec, responses={200: NodeAnswer, **ERRORS})
    def post(self, request: Request, name: str) -> Response:
        """It takes launches again. For admins."""
        nodes.undrain(person(request), name, **NoteSpec.parse(request.data))
        return self.answer(name)
