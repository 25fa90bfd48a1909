"""allocations/, reports/, peaks/, audit/: what happened."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from web import peaks, reports
from web.api.access import IsAdmin, IsSignedIn, TokenAllows, person
from web.api.outcome import ERRORS
from web.api.queries import PageQuery, Query
from web.errors import invalid
from web.models import AllocationEvent, AuditEntry


@extend_schema_field(OpenApiTypes.STR)
class TimeField(serializers.Field[datetime, Any, str, Any]):
    """An ISO time, or a date: its midnight UTC. A time without a zone is UTC."""

    def to_internal_value(self, data: Any) -> datetime:
        try:
            found = parse_datetime(data) if "T" in data or " " in data.strip() else None
            date = parse_date(data) if found is None else None
        except ValueError:  # looks right, but there is no such day or hour
            found = date = None
        if date is not None:
            found = datetime.combine(date, time(), UTC)
        if found is None:
            raise serializers.ValidationError("This has to be a date, such as 2026-11-20, or a time in ISO form.")
        if not 2000 <= found.year < 3000:
            raise serializers.ValidationError("This is not a time of this appliance's.")
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)

    def to_representation(self, value: datetime) -> str:
        return value.isoformat()


class SpanQuery(Query):
    def get_fields(self) -> dict[str, Any]:
        # "from" is a word of Python's, so it cannot be declared as an attribute.
        return {**super().get_fields(), "from": TimeField(required=False), "to": TimeField(required=False)}


class AllocationQuery(SpanQuery, PageQuery):
    container = serializers.UUIDField(required=False)
    owner = serializers.CharField(required=False)
    kind = serializers.ChoiceField(AllocationEvent.Kind.choices, required=False)
    gpu = serializers.CharField(required=False, help_text="UUID.")
    ordering = serializers.ChoiceField(["at", "-at", "bytes", "-bytes", "waited", "-waited"], required=False)


class AllocationAnswer(serializers.ModelSerializer[AllocationEvent]):
    name = serializers.CharField(source="container.name")
    owner = serializers.CharField(source="container.owner.username")
    gpu = serializers.CharField(source="gpu.uuid", default=None, allow_null=True)

    class Meta:
        model = AllocationEvent
        fields = [
            "id", "at", "kind", "container", "name", "owner", "gpu", "pid", "bytes", "used_after", "waited", "policy",
            "detail",
        ]  # fmt: skip
        read_only_fields = fields


_PATHS = {"container": "container", "owner": "container__owner__username", "kind": "kind", "gpu": "gpu__uuid",
          "from": "at__gte", "to": "at__lt"}  # fmt: skip


class Allocations(ListAPIView[AllocationEvent]):
    """What happened to containers and their memory, newest first."""

    serializer_class = AllocationAnswer

    def get_queryset(self) -> QuerySet[AllocationEvent]:
        query = AllocationQuery.of(self.request)
        rows = AllocationEvent.objects.filter(**{path: query[name] for name, path in _PATHS.items() if name in query})
        order = query.get("ordering", "-at")
        return rows.select_related("container__owner", "gpu").order_by(order, "-id" if order[0] == "-" else "id")

    @extend_schema(parameters=[AllocationQuery], responses={200: AllocationAnswer(many=True), **ERRORS})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.list(request, *args, **kwargs)


class ReportQuery(SpanQuery):
    group_by = serializers.ChoiceField(reports.GROUPINGS, required=False, default="user")
    owner = serializers.CharField(required=False, default="")
    format = serializers.ChoiceField(["json", "csv"], required=False, default="json")


class RowAnswer(serializers.Serializer[Any]):
    group = serializers.CharField()
    containers = serializers.IntegerField()
    vram_gib_hours = serializers.FloatField()
    peak = serializers.IntegerField(help_text="Bytes; the most that one container held on one GPU at once.")
    suspended_seconds = serializers.FloatField()
    rejects = serializers.IntegerField()
    cost = serializers.FloatField()


class ReportAnswer(serializers.Serializer[Any]):
    group_by = serializers.CharField()
    rows = RowAnswer(many=True)
    total = RowAnswer()

    def get_fields(self) -> dict[str, Any]:
        return {"from": serializers.DateTimeField(), "to": serializers.DateTimeField(), **super().get_fields()}


class AllocationReport(APIView):
    """The audit report: who held how much for how long, waited, and was refused."""

    @extend_schema(
        parameters=[ReportQuery], responses={200: ReportAnswer, (200, "text/csv"): OpenApiTypes.STR, **ERRORS}
    )
    def get(self, request: Request) -> HttpResponseBase:
        query = ReportQuery.of(request)
        end = query.get("to") or timezone.now()
        start = query.get("from") or end - _MONTH
        if start >= end:
            raise invalid(f"The range is empty: it ends at {end:%Y-%m-%d %H:%M} and begins not before.", "from")
        found = reports.report(start, end, query["group_by"], query["owner"])
        if query["format"] == "json":
            return Response(ReportAnswer(found.as_dict()).data)
        name = f"gpushare-{query['group_by']}-{start:%Y%m%d}-{end:%Y%m%d}.csv"
        lines = reports.csv_stream(found)
        return StreamingHttpResponse(
            lines, content_type="text/csv", headers={"Content-Disposition": f'attachment; filename="{name}"'}
        )


_MONTH = timedelta(days=30)


class PeakQuery(PageQuery):
    image = serializers.CharField(required=False, default="")
    command = serializers.CharField(required=False, help_text="As one would type it.")


class PeakAnswer(serializers.Serializer[Any]):
    image = serializers.CharField()
    command = serializers.ListField(
        child=serializers.CharField(), allow_null=True, help_text="null: other people's runs of the image, together."
    )
    runs = serializers.IntegerField()
    rejected_runs = serializers.IntegerField(help_text="Runs in which a request was rejected: they wanted more.")
    peak = serializers.IntegerField(help_text="Bytes; the most that any run held on one GPU, contexts included.")
    suggestion = serializers.IntegerField(help_text="A quota that would have been enough, in bytes.")


class Peaks(ListAPIView[Any]):
    """What runs of an image and a command really took, and the quota to ask for."""

    serializer_class = PeakAnswer

    @extend_schema(parameters=[PeakQuery], responses={200: PeakAnswer(many=True), **ERRORS})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        query = PeakQuery.of(request)
        try:
            command = shlex.split(query["command"]) if "command" in query else None
        except ValueError as error:
            raise invalid(f"This cannot be split into words: {error}.", "command") from None
        page = self.paginate_queryset(peaks.peaks(person(request), query["image"], command))
        return self.get_paginated_response(PeakAnswer(page, many=True).data)


class AuditQuery(SpanQuery, PageQuery):
    action = serializers.CharField(required=False)
    actor = serializers.CharField(required=False)
    subject = serializers.CharField(required=False)


class AuditAnswer(serializers.ModelSerializer[AuditEntry]):
    class Meta:
        model = AuditEntry
        fields = ["id", "at", "action", "actor", "address", "subject", "detail", "seal"]
        read_only_fields = fields


class Audit(ListAPIView[AuditEntry]):
    """What people did and tried to do, newest first."""

    permission_classes = [IsSignedIn, TokenAllows, IsAdmin]
    serializer_class = AuditAnswer

    def get_queryset(self) -> QuerySet[AuditEntry]:
        query = AuditQuery.of(self.request)
        paths = {"action": "action", "actor": "actor", "subject": "subject", "from": "at__gte", "to": "at__lt"}
        rows = AuditEntry.objects.filter(**{path: query[name] for name, path in paths.items() if name in query})
        return rows.order_by("-id")

    @extend_schema(parameters=[AuditQuery], responses={200: AuditAnswer(many=True), **ERRORS})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.list(request, *args, **kwargs)
