"""allocations/: what happened to containers and their memory."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from web.api.protocol.answer import Answer
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery, SpanQuery
from web.models import AllocationEvent, large


class AllocationQuery(SpanQuery, PageQuery):
    container = serializers.UUIDField(required=False)
    owner = serializers.CharField(required=False)
    kind = serializers.ChoiceField(AllocationEvent.Kind.choices, required=False)
    gpu = serializers.CharField(required=False, help_text="UUID.")
    ordering = serializers.ChoiceField(["at", "-at", "bytes", "-bytes", "waited", "-waited"], required=False)


class AllocationAnswer(Answer[AllocationEvent]):
    name = serializers.CharField(source="container.name")
    owner = serializers.CharField(source="container.owner.username")
    gpu = serializers.CharField(source="gpu.uuid", default=None, allow_null=True)

    class Meta:
        model = AllocationEvent
        fields = [
            "id", "at", "kind", "container", "name", "owner", "gpu", "pid", "bytes", "used_after", "waited", "policy",
            "detail",
        ]  # fmt: skip


_PATHS = {"container": "container", "owner": "container__owner__username", "kind": "kind", "gpu": "gpu__uuid",
          "from": "at__gte", "to": "at__lt"}  # fmt: skip


class Allocations(ListAPIView[AllocationEvent]):
    """Events of containers and their memory: accepted, suspended, resumed, rejected, freed, started, ended and more.

    Newest first; other orders by `ordering`; those from `from` on and before `to`. `bytes` is what the event is about,
    `used_after` what the container then held on that GPU (bytes), `waited` how long a call had waited (seconds).
    400: a filter is unknown or has no such value.
    """

    serializer_class = AllocationAnswer

    def get_queryset(self) -> QuerySet[AllocationEvent]:
        query = AllocationQuery.of(self.request)
        rows = AllocationEvent.objects.filter(**{path: query[name] for name, path in _PATHS.items() if name in query})
        order = query.get("ordering", "-at")
        whole = rows.select_related("container__owner", "gpu").defer(*large("container__"))
        return whole.order_by(order, "-id" if order[0] == "-" else "id")

    @extend_schema(parameters=[AllocationQuery], responses={200: AllocationAnswer(many=True), **ERRORS})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.list(request, *args, **kwargs)
