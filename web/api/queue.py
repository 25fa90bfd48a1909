"""queue/, policy/, forecast/: who waits, in which order, and whether more would fit."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from web.api.answers import CommandAnswer, WaitingAnswer
from web.api.protocol.access import person
from web.api.protocol.answer import Answer
from web.api.protocol.lists import list_response
from web.api.protocol.outcome import ERRORS, decided, finished
from web.api.protocol.queries import PageQuery, Query
from web.api.rows import WAITING
from web.errors import Problem
from web.models import Container, Node
from web.services import steering
from web.services.booked import coming
from web.spec import constraints, quotas
from web.spec.fields import MOST_GPUS, SizeField
from web.spec.requests import LONGEST_SECONDS, PRIORITY_HIGHEST, PRIORITY_LOWEST, OrderSpec, PolicySpec


class Queue(GenericAPIView[Container]):
    """The suspended containers in the order in which they are tried when memory comes back; then those without a node.

    Each with what its waiting calls ask for (bytes), since when, and the reason in words. Those that `waits_for` a
    "node" were handed to a Swarm, and the reason is the Swarm's own: in which order they come to nodes it decides.
    """

    serializer_class = WaitingAnswer

    def get_queryset(self) -> QuerySet[Container]:
        return Container.objects.queued()

    @extend_schema(parameters=[PageQuery], responses={200: WaitingAnswer(many=True), **ERRORS})
    def get(self, request: Request) -> HttpResponse:
        def rows() -> QuerySet[Container]:
            PageQuery.of(request)
            return self.get_queryset()

        return list_response(self, WAITING, rows)

    @extend_schema(request=OrderSpec, responses={200: CommandAnswer, 202: CommandAnswer, **ERRORS})
    def put(self, request: Request) -> Response:
        """Puts the queue into another order, by ids; containers left out keep theirs, behind those named.

        For operators and admins. 200: done; 202: the scheduler has not answered yet. 400: one is unknown, has ended or
        is named twice.
        """
        order = OrderSpec.parse(request.data)["containers"]
        return decided(steering.reorder(person(request), order))


class PolicyAnswer(Answer[Node]):
    policies = serializers.ListField(
        child=serializers.DictField(child=serializers.CharField()),
        help_text="`name`; and a sentence each: `explanation` (who is served first), `bound` (how long somebody waits "
        "at most), `source` (whose idea it is).",
    )

    class Meta:
        model = Node
        fields = ["policy", "policies"]


class Policy(APIView):
    @extend_schema(responses={200: PolicyAnswer, **ERRORS})
    def get(self, request: Request) -> Response:
        """The policy in force, and all that there are; the default first. Empty before a scheduler has run."""
        return Response(PolicyAnswer(Node.here() or Node()).data)

    @extend_schema(request=PolicySpec, responses={200: CommandAnswer, 202: CommandAnswer, **ERRORS})
    def put(self, request: Request) -> Response:
        """Sets the policy: which suspended container is tried first when memory comes back, from now on.

        For admins. 400: there is no policy of that name; the message lists them.
        """
        return decided(steering.set_policy(person(request), PolicySpec.parse(request.data)["policy"]))


@extend_schema_field({"type": "string", "example": "node.labels.disk==ssd,node!=gpu3"})
class ConstraintsField(serializers.Field[list[str], Any, list[str], Any]):
    """Those of a launch, separated by commas."""

    def to_internal_value(self, data: Any) -> list[str]:
        return [constraints.check(each) for each in str(data).split(",") if each.strip()]


class ForecastQuery(Query):
    gpu_memory = SizeField(smallest=quotas.LEAST)
    gpus = serializers.IntegerField(default=1, min_value=1, max_value=MOST_GPUS)
    priority = serializers.IntegerField(default=0, min_value=PRIORITY_LOWEST, max_value=PRIORITY_HIGHEST)
    node = serializers.CharField(allow_blank=True, default="", help_text="Empty: where a launch would go now.")
    constraints = ConstraintsField(default=list)
    ttl_seconds = serializers.IntegerField(
        default=None,
        min_value=1,
        max_value=int(LONGEST_SECONDS),
        help_text="Its time limit: reservations and maintenance after that do not concern it.",
    )


class ForecastAnswer(serializers.Serializer[Any]):
    fits = serializers.BooleanField(
        allow_null=True,
        help_text="It would get all of its quota now; null: a Swarm chooses the node, and only it knows.",
    )
    behind = serializers.ListField(child=serializers.UUIDField(), help_text="The containers it would wait for.")
    earliest = serializers.FloatField(allow_null=True, help_text="Seconds from now, at the latest; null: not known.")
    message = serializers.CharField()
    node = serializers.CharField(help_text="Where it would go; empty: a Swarm chooses.")
    node_reason = serializers.CharField(help_text="Why there; empty: there is no choice.")


class Forecast(APIView):
    @extend_schema(parameters=[ForecastQuery], responses={200: ForecastAnswer, **ERRORS})
    def get(self, request: Request) -> Response:
        """Would a launch of this size fit now; if not, behind whom, and in how many seconds at the latest?

        A question: nothing is launched or recorded. 503: the scheduler is away or has not answered within 5 seconds.
        """
        command = steering.forecast(person(request), **ForecastQuery.of(request))
        try:
            result = finished(command)
        finally:
            command.delete()  # a question leaves no trace
        if isinstance(result, Response):
            raise Problem("scheduler_slow", "The scheduler has not answered in time; ask again.", 503)
        where, why = result.node.name if result.node else "", command.arguments["reason"]
        answer = dict(result.result or {})
        answer["message"] = f"{answer.get('message', '')} {coming.said_before(command)}".strip()
        return Response(ForecastAnswer({**answer, "node": where, "node_reason": why}).data)
