"""planned/: launches that begin later."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from web.api.protocol.access import body, person
from web.api.protocol.answer import Answer
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery, Query
from web.models import Planned
from web.models.planned import Ended, PlannedQuerySet
from web.services import planning
from web.spec.planned import EditSpec
from web.spec.requests import PRIVATE, NoteSpec


class PlannedAnswer(Answer[Planned]):
    """A planned launch, or a sweep of them. Sizes are bytes, durations seconds, times UTC."""

    owner = serializers.CharField(source="owner.username")
    node = serializers.SerializerMethodField(help_text="Whose scheduler starts it; null: none any more.")
    launch = serializers.SerializerMethodField(
        help_text="The launch, with {i} and {value} as written; command and env are null for who may not change it."
    )
    values = serializers.SerializerMethodField(help_text="null in the list, and for who may not change it.")
    state = serializers.CharField(read_only=True, help_text="waiting, held, running, or how it ended.")
    waits_for = serializers.CharField(read_only=True, help_text="What it waits for, in a sentence.")
    begun = serializers.IntegerField(read_only=True, help_text="Runs that have begun.")
    ok = serializers.SerializerMethodField(help_text="Runs that ended with exit code 0.")
    failed = serializers.SerializerMethodField(help_text="Runs that failed, after their last attempt.")
    running = serializers.SerializerMethodField(help_text="[{run, attempt, container}] of those under way.")
    ended = serializers.ChoiceField(Ended.choices, allow_blank=True, help_text="How it ended; empty: it has not.")

    class Meta:
        model = Planned
        fields = [
            "id", "name", "owner", "node", "node_reason", "state", "place", "waits_for", "launch", "sweep", "variable",
            "values", "count", "at_once", "begun", "ok", "failed", "running", "after", "begin_at", "held_at", "retries",
            "retry_pause", "gpus", "gpu_count", "quota", "priority", "created_at", "started_at", "cancelled_at",
            "finished_at", "ended", "reason", "again_of",
        ]  # fmt: skip

    def _shows(self, planned: Planned) -> bool:
        shows = self.context.get("steers")
        return shows is None or bool(shows(planned))

    def get_node(self, planned: Planned) -> str | None:
        return planned.node.name if planned.node else None

    def get_launch(self, planned: Planned) -> dict[str, Any]:
        env = sorted(planned.spec["env"])
        shown = {"command": planned.spec["command"], "env": env} if self._shows(planned) else dict.fromkeys(PRIVATE)
        return {**planned.spec, **shown}

    def get_values(self, planned: Planned) -> list[str] | None:
        """Left out of the list: a sweep may have ten thousand."""
        return planned.values if "values" not in planned.get_deferred_fields() and self._shows(planned) else None

    def get_ok(self, planned: Planned) -> int:
        return int(planned.progress.get("ok", 0))

    def get_failed(self, planned: Planned) -> int:
        return int(planned.progress.get("failed", 0))

    def get_running(self, planned: Planned) -> list[dict[str, Any]]:
        return [{"run": run, "attempt": number, "container": id_} for run, number, id_ in planned.running]


class PlannedQuery(PageQuery):
    owner = serializers.CharField(required=False)
    name = serializers.CharField(required=False)
    node = serializers.CharField(required=False)
    open = serializers.BooleanField(required=False, help_text="true, the usual: not ended; false: ended.")


class PlannedLaunches(RetrieveModelMixin, GenericViewSet[Planned]):
    """Launches that begin later, and sweeps. `POST containers/` makes them; owners and operators change them."""

    queryset = Planned.objects.all()
    serializer_class = PlannedAnswer
    lookup_value_converter = "uuid"

    def get_queryset(self) -> PlannedQuerySet:
        return Planned.objects.select_related("owner", "node")

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "steers": planning.steers(person(self.request))}

    @extend_schema(parameters=[PlannedQuery], responses={200: PlannedAnswer(many=True), **ERRORS})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Those that have not ended, in the order in which they would start, as far as the scheduler has said it.

        400: a filter is unknown or has no such value.
        """
        rows = self.get_queryset().filter(planning.matching(PlannedQuery.of(request)))
        return self.get_paginated_response(
            self.get_serializer(self.paginate_queryset(rows.defer("values").in_order()), many=True).data
        )

    @extend_schema(responses={200: PlannedAnswer, **ERRORS})
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One of them, ended or not. 404: there was never one of this id."""
        Query.of(request)
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=EditSpec, responses={200: PlannedAnswer, **ERRORS})
    def partial_update(self, request: Request, pk: UUID) -> Response:
        """Another `at_once`, `priority`, `after`, `begin_at`, `retries` or `retry_pause`, also while runs go on.

        400: nothing to change, or a circle of `after`. 403: not yours to change. 409: it has ended.
        """
        return self._answer(planning.edit(person(request), self.get_object(), **body(request)))

    @extend_schema(request=NoteSpec, responses={200: PlannedAnswer, **ERRORS})
    @action(detail=True, methods=["post"])
    def hold(self, request: Request, pk: UUID) -> Response:
        """Nothing more of it begins until it is released. What runs goes on. 403: not yours. 409: it has ended."""
        return self._answer(planning.hold(person(request), self.get_object(), **NoteSpec.parse(request.data)))

    @extend_schema(request=NoteSpec, responses={200: PlannedAnswer, **ERRORS})
    @action(detail=True, methods=["post"])
    def release(self, request: Request, pk: UUID) -> Response:
        """Lets a held one begin. 403: not yours to change. 409: it has ended."""
        return self._answer(planning.release(person(request), self.get_object(), **NoteSpec.parse(request.data)))

    @extend_schema(request=NoteSpec, responses={200: PlannedAnswer, **ERRORS})
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: UUID) -> Response:
        """Nothing more of it ever begins. What runs goes on, and can be killed. 403: not yours. 409: it has ended."""
        return self._answer(planning.cancel(person(request), self.get_object(), **NoteSpec.parse(request.data)))

    @extend_schema(request=None, responses={201: PlannedAnswer(many=True), **ERRORS})
    @action(detail=True, methods=["post"])
    def again(self, request: Request, pk: UUID) -> Response:
        """Plans an ended one once more, and with it what never began because of it, after the new one.

        201: all that was planned. 403: not yours. 409: it has not ended.
        """
        made = planning.again(person(request), self.get_object())
        return Response(self.get_serializer(made, many=True).data, 201)

    def _answer(self, planned: Planned) -> Response:
        return Response(self.get_serializer(planned).data)
