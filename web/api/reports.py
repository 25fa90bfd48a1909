"""reports/allocations/, fairness/, peaks/: who held how much for how long, against what was due, and what runs took."""

from datetime import timedelta
from typing import Any

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from web.api.protocol.access import person
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery, SpanQuery
from web.errors import invalid
from web.history import fairness, peaks, reports
from web.spec import periods
from web.spec.fields import words_of

_MONTH = timedelta(days=30)


class ReportQuery(SpanQuery):
    group_by = serializers.ChoiceField(reports.GROUPINGS, default="user")
    owner = serializers.CharField(default="")
    format = serializers.ChoiceField(["json", "csv"], default="json")


class RowAnswer(serializers.Serializer[Any]):
    """One line: `group` is a user, container, day or what else `group_by` asked for."""

    group = serializers.CharField()
    containers = serializers.IntegerField()
    vram_gib_hours = serializers.FloatField()
    gpu_hours = serializers.FloatField(
        allow_null=True, help_text="That they computed, over all GPUs, by NVML; null: not known."
    )
    peak = serializers.IntegerField(help_text="Bytes; the most that one container held on one GPU at once.")
    suspended_seconds = serializers.FloatField()
    wait_mean = serializers.FloatField(allow_null=True, help_text="Seconds; null: nobody waited.")
    wait_p95 = serializers.FloatField(allow_null=True, help_text="What 95 % of the waits did not exceed.")
    had_gib_hours = serializers.FloatField(
        allow_null=True, help_text="Of a user: held while somebody waited for that GPU, to the hour; null: of others."
    )
    due_gib_hours = serializers.FloatField(allow_null=True, help_text="Of a user: the fair share of it.")
    due_gpu_hours = serializers.FloatField(allow_null=True, help_text="That turns gave them; null: there were none.")
    rejects = serializers.IntegerField()
    vram_cost = serializers.FloatField()
    gpu_cost = serializers.FloatField()
    cost = serializers.FloatField(help_text="Both together.")


class ReportAnswer(serializers.Serializer[Any]):
    group_by = serializers.CharField()
    rows = RowAnswer(many=True)
    total = RowAnswer()

    def get_fields(self) -> dict[str, Any]:
        return {"from": serializers.DateTimeField(), "to": serializers.DateTimeField(), **super().get_fields()}


class AllocationReport(APIView):
    """The audit report: who held how much VRAM for how long (GiB × hours), computed (hours), waited (seconds), and was
    rejected.

    From `from` (30 days before `to`, if left out) until `to` (now, at the latest). `peak` is in bytes, costs in
    whatever the prices of a GiB × hour and of a GPU's hour are set in. `format=csv` gives the rows as a file. 400: the
    range is empty.
    """

    @extend_schema(
        parameters=[ReportQuery], responses={200: ReportAnswer, (200, "text/csv"): OpenApiTypes.STR, **ERRORS}
    )
    def get(self, request: Request) -> HttpResponseBase:
        query = ReportQuery.of(request)
        end = query.get("to") or timezone.now()
        start, end = periods.past(query.get("from") or end - _MONTH, end)
        found = reports.report(start, end, query["group_by"], query["owner"])
        if query["format"] == "json":
            return Response(ReportAnswer(found.as_dict()).data)
        name = f"gpushare-{query['group_by']}-{start:%Y%m%d}-{end:%Y%m%d}.csv"
        lines = reports.csv_stream(found)
        return StreamingHttpResponse(
            lines, content_type="text/csv", headers={"Content-Disposition": f'attachment; filename="{name}"'}
        )


class FiguresAnswer(serializers.Serializer[Any]):
    """A person's, or a group's with its members. Memory in GiB × hours, computing in hours of a GPU, waits in seconds.

    `ratio` is `had` of `due`, null if nobody waited; `standing` the same with old usage fading: the queue's;
    null of a group."""

    name = serializers.CharField()
    shares = serializers.FloatField(allow_null=True, help_text="Boosts included; null: a group that does not count.")
    group = serializers.CharField(allow_blank=True, help_text="Of a person: the group that counts; empty: none.")
    members = serializers.ListField(child=serializers.CharField())
    had = serializers.FloatField(help_text="Held while somebody waited for that GPU.")
    due = serializers.FloatField(help_text="The fair share of it.")
    ratio = serializers.FloatField(allow_null=True)
    standing = serializers.FloatField(allow_null=True)
    held = serializers.FloatField(help_text="Also while nobody waited.")
    gpu_had = serializers.FloatField(allow_null=True, help_text="That they computed; null: not known.")
    gpu_due = serializers.FloatField(allow_null=True, help_text="That turns gave them; null: there were none.")
    waits = serializers.IntegerField()
    wait_mean = serializers.FloatField(allow_null=True)
    wait_p95 = serializers.FloatField(allow_null=True, help_text="What 95 % of the waits did not exceed.")
    containers = serializers.IntegerField(help_text="That lived in that time.")
    holds = serializers.IntegerField(help_text="Bytes, now.")
    share = serializers.IntegerField(
        allow_null=True, help_text="Fair share now, in bytes, of the GPUs with waiting containers; null: none waits."
    )
    why = serializers.CharField(allow_blank=True, help_text="Of one above the fair share: what can be seen of it now.")


class FairnessAnswer(serializers.Serializer[Any]):
    people = FiguresAnswer(many=True)
    groups = FiguresAnswer(many=True)

    def get_fields(self) -> dict[str, Any]:
        return {"from": serializers.DateTimeField(), "to": serializers.DateTimeField(), **super().get_fields()}


def _figures(each: fairness.Figures) -> dict[str, Any]:
    counted = {"waits": len(each.waits), "members": sorted(each.members)}
    names = (str(name) for name in FiguresAnswer().fields)
    return {name: counted[name] if name in counted else getattr(each, name) for name in names}


class Fairness(APIView):
    """Who used how much of the memory that others waited for, against what was due to them; who used most first.

    From `from` (7 days before `to`, if left out) until `to` (now, at the latest); `had` and `due` are to the hour.
    """

    @extend_schema(parameters=[SpanQuery], responses={200: FairnessAnswer, **ERRORS})
    def get(self, request: Request) -> Response:
        query = SpanQuery.of(request)
        end = query.get("to") or timezone.now()
        start, end = periods.past(query.get("from") or end - reports.WEEK, end)
        found = fairness.people(start, end)
        rows = {"people": [*map(_figures, found)], "groups": [*map(_figures, fairness.groups(found))]}
        return Response(FairnessAnswer({"from": start, "to": end, **rows}).data)


class PeakQuery(PageQuery):
    image = serializers.CharField(default="")
    command = serializers.CharField(required=False, help_text="As one would type it.")


class PeakAnswer(serializers.Serializer[Any]):
    image = serializers.CharField()
    command = serializers.ListField(
        child=serializers.CharField(), allow_null=True, help_text="What all of these ran; null: the owner's, all."
    )
    owner = serializers.CharField(
        allow_null=True, help_text="Whose runs these are: one's own; null: all with this command."
    )
    runs = serializers.IntegerField(
        help_text="Runs that ended by themselves with exit code 0, and were refused nothing."
    )
    rejected_runs = serializers.IntegerField(
        help_text="Others, in which a request was rejected: they wanted more than they got, and do not count."
    )
    peak = serializers.IntegerField(
        allow_null=True, help_text="Bytes; the most that any of the runs held on one GPU, contexts included."
    )
    last = serializers.DateTimeField(allow_null=True, help_text="When the last of the runs ended.")
    suggestion = serializers.IntegerField(
        allow_null=True, help_text="A quota that would have been enough, in bytes; null: too few runs to tell."
    )


class Peaks(ListAPIView[Any]):
    """What runs of an image and a command really took at most, and the quota to ask for (both bytes)."""

    serializer_class = PeakAnswer

    @extend_schema(parameters=[PeakQuery], responses={200: PeakAnswer(many=True), **ERRORS})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        query = PeakQuery.of(request)
        try:
            command = words_of(query["command"]) if "command" in query else None
        except ValueError as error:
            raise invalid(f"This cannot be split into words: {error}.", "command") from None
        page = self.paginate_queryset(peaks.peaks(person(request), query["image"], command))
        return self.get_paginated_response(PeakAnswer(page, many=True).data)
