"""attention/: what needs somebody now."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from web.api.protocol.access import person
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery
from web.people.roles import rights_of
from web.services import attention


class AttentionAnswer(serializers.Serializer[Any]):
    key = serializers.CharField(help_text="Stays the same while the item lasts.")
    kind = serializers.ChoiceField([kind.value for kind in attention.Kind])
    person = serializers.CharField(help_text="Its owner; empty: the host.")
    message = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)
    container = serializers.UUIDField(allow_null=True, source="container.pk", default=None)
    gpu = serializers.CharField(allow_null=True, source="gpu.uuid", default=None)
    node = serializers.CharField(help_text="Name of the container concerned; empty: none, or all.")
    because = serializers.CharField(help_text="The key of the item that causes it; empty: none that is known.")
    acts = serializers.SerializerMethodField(
        help_text="What would help and is allowed to you: free, resume and kill it; first: put it first in queue/; "
        "again: launch it again, corrected."
    )
    command = serializers.CharField(help_text="For a shell on the host, where nothing else helps.")

    def get_acts(self, item: attention.Item) -> list[str]:
        return item.acts_of(self.context["rights"])


class Attention(GenericAPIView[Any]):
    """What needs somebody now, what stops everybody first. Empty while all is well.

    Who waits for long, and who is paused or idle and keeps others waiting; memory that nobody accounts for; who takes
    no part in the turns; launches that fail again and again; a scheduler, an engine or a GPU that is away.
    """

    serializer_class = AttentionAnswer

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "rights": rights_of(person(self.request))}

    @extend_schema(parameters=[PageQuery], responses={200: AttentionAnswer(many=True), **ERRORS})
    def get(self, request: Request) -> Response:
        PageQuery.of(request)
        page = self.paginate_queryset(attention.items())
        return self.get_paginated_response(self.get_serializer(page, many=True).data)
