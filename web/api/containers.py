"""containers/: launch, look, steer."""

from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

from django.db.models import QuerySet, prefetch_related_objects
from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiParameter,
    PolymorphicProxySerializer,
    extend_schema,
    extend_schema_serializer,
)
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from web.api.answers import CommandAnswer, ContainerAnswer, PendingAnswer, SteeredAnswer
from web.api.planned import PlannedAnswer
from web.api.protocol.access import body, person
from web.api.protocol.lists import Row, list_response, to_json
from web.api.protocol.outcome import ERRORS, finished
from web.api.protocol.queries import ContainerQuery, PageQuery, Query, containers_matching
from web.api.rows import CONTAINERS
from web.errors import invalid
from web.http import reading
from web.models import Command, Container, ContainerQuerySet, Planned
from web.models.hosts import ordered
from web.models.records import claims_with_gpus
from web.people.roles import require_steering, rights_of, steered_by
from web.services import guests, planning, steering
from web.services.booked import coming
from web.services.sharing import not_kept, price
from web.spec.fields import StrictText
from web.spec.people import GuestsSpec
from web.spec.planned import PlannedSpec
from web.spec.requests import PRIVATE, ChangeSpec, KillSpec, MoveSpec, NoteSpec, PauseSpec

LAUNCHED_OR_PLANNED = PolymorphicProxySerializer(
    component_name="LaunchedOrPlanned", serializers=[SteeredAnswer, PlannedAnswer], resource_type_field_name=None
)
STEERED = {200: SteeredAnswer, 202: PendingAnswer, **ERRORS}
LAUNCHED = {201: LAUNCHED_OR_PLANNED, 202: PendingAnswer, **ERRORS}


@extend_schema_serializer(component_name="LaunchSpec")
class LaunchBody(PlannedSpec):
    """A launch over REST. `owner`: whose it is, for a service that may launch for others; else it is yours.

    With `queue`, `after`, `begin_at`, `hold` or `sweep` it is planned: the answer is that of planned/{id}/.
    """

    owner = StrictText(allow_blank=True, default="", max_length=150)


class LogsQuery(Query):
    follow = serializers.BooleanField(default=False)
    tail = serializers.IntegerField(required=False, min_value=0, max_value=1_000_000, help_text="The last lines only.")


class Containers(RetrieveModelMixin, GenericViewSet[Container]):
    """Containers: launch them, look at them, steer them. Everybody sees all; steering is for owners and operators.

    What changes a container waits up to 5 seconds for the scheduler. 200 or 201: it is done, and `message` says what
    really happened. 202: not yet; ask the command at `url` what became of it.
    """

    queryset = Container.objects.all()
    serializer_class = ContainerAnswer
    lookup_value_converter = "uuid"

    def get_queryset(self) -> ContainerQuerySet:
        return Container.objects.whole()

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "shows": steered_by(person(self.request))}

    @extend_schema(parameters=[ContainerQuery], responses={200: ContainerAnswer(many=True), **ERRORS})
    def list(self, request: Request) -> HttpResponse:
        """The containers that were not removed, youngest first; other orders by `ordering`.

        `command` and `env` are null for whoever may not steer that container. Sizes are bytes, durations seconds.
        400: a filter is unknown or has no such value.
        """

        def rows() -> QuerySet[Container]:
            query = ContainerQuery.of(request)
            found = Container.objects.listed().filter(containers_matching(query))
            order = query.get("ordering", "-created_at")
            # The id last, so that pages never overlap where the rest is equal.
            return found.order_by(ordered(order.removeprefix("-"), down=order[0] == "-"), "pk")

        return list_response(self, CONTAINERS, rows, self._with_private)

    def _with_private(self, rows: Sequence[Row]) -> Sequence[bytes]:
        """Each with its command and the names in its environment, or nulls, if this reader may not steer it."""
        steered = rights_of(person(self.request)).steered({row.key: row.owner for row in rows})
        found = Container.objects.filter(pk__in=steered).order_by().values_list("pk", "command", "environment")
        shown = {key: to_json({"command": command, "env": sorted(names)}) for key, command, names in found}
        hidden = to_json(dict.fromkeys(PRIVATE))
        return [row.json[:-1] + b"," + shown.get(row.key, hidden)[1:] for row in rows]

    @extend_schema(responses={200: ContainerAnswer, **ERRORS})
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One container, removed or not. 404: there was never one of this id."""
        Query.of(request)
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        request=LaunchBody,
        responses=LAUNCHED,
        parameters=[
            OpenApiParameter(
                "Idempotency-Key", str, OpenApiParameter.HEADER,
                description="With the same key, the same request launches nothing a second time.",
            )
        ],
    )  # fmt: skip
    def create(self, request: Request) -> Response:
        """Launches a container. `image` is all that has to be given; sizes are bytes or text such as "2GiB".

        With `queue`, `after`, `begin_at`, `hold` or `sweep` it is planned, and the answer is as from planned/{id}/:
        nothing is started, and no memory taken, until its whole quota is free and its conditions hold.

        201: it was started, or planned. 202: the scheduler is still at it, for example fetching the image. 400: a field
        is unknown or wrong, or no GPU here has that much. 403: your role, token or allowance forbids it. 409: the name
        is taken, or the key was used for another launch. 503: the scheduler or the engine is away.
        """
        key = request.headers.get("Idempotency-Key", "")
        if len(key) > 128 or not key.isascii() or not key.isprintable():
            raise invalid("The Idempotency-Key has to be at most 128 printable characters.")
        spec = dict(body(request))
        owner = spec.pop("owner", "")
        if not isinstance(owner, str):
            raise invalid("The owner has to be the name of an account.", "owner")
        made = planning.launch(person(request), spec, key, owner)
        if isinstance(made, Planned):
            return Response(PlannedAnswer(made).data, status.HTTP_201_CREATED)
        return self._outcome(made, status.HTTP_201_CREATED, coming.ahead_of_a_launch())

    @extend_schema(request=ChangeSpec, responses=STEERED)
    def partial_update(self, request: Request, pk: UUID) -> Response:
        """Another quota (`gpu_memory`, bytes on each GPU), `priority`, `compute_weight` or `compute_limit` (percent;
        null: none) for a container that has not ended.

        400: nothing to change, or more than a GPU has. 403: not yours to steer, or beyond the owner's allowance.
        409: it has ended, or holds more than that now.
        """
        return self._outcome(steering.change(person(request), self.get_object(), **body(request)))

    @extend_schema(request=None, responses=STEERED)
    def destroy(self, request: Request, pk: UUID) -> Response:
        """Removes an ended container and its output; its history stays. 409: it has not ended."""
        return self._outcome(steering.remove(person(request), self.get_object()))

    @extend_schema(request=PauseSpec, responses=STEERED)
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pk: UUID) -> Response:
        """Freezes its processes. What it holds on a GPU stays held, so those who wait for it go on waiting.

        With `free_memory` its VRAM goes to host memory first, byte by byte, and is free for others; when it is resumed
        it waits until there is room for it, and goes on where it was. `note` is kept in the audit log. 403: not yours
        to steer. 409: it has ended, or its memory cannot be freed: `message` says why.
        """
        given = PauseSpec.parse(request.data)
        return self._outcome(steering.pause(person(request), self.get_object(), **given))

    @extend_schema(request=NoteSpec, responses=STEERED)
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: UUID) -> Response:
        """Lets a paused container go on. 403: not yours to steer. 409: it has ended."""
        given = NoteSpec.parse(request.data)
        return self._outcome(steering.resume(person(request), self.get_object(), **given))

    @extend_schema(request=KillSpec, responses=STEERED)
    @action(detail=True, methods=["post"])
    def kill(self, request: Request, pk: UUID) -> Response:
        """Ends a container: at once, or with its stop signal first (its image's, else SIGTERM) and up to `grace`
        seconds to end by itself.

        What it held is free once the card shows it no more. 403: not yours to steer. 409: it has ended.
        """
        given = KillSpec.parse(request.data)
        return self._outcome(steering.kill(person(request), self.get_object(), **given))

    @extend_schema(request=MoveSpec, responses=STEERED)
    @action(detail=True, methods=["post"])
    def move(self, request: Request, pk: UUID) -> Response:
        """Moves its memory to another GPU (`gpu`, a UUID) of its host, by way of host memory; its programs go on there.

        `leaves` names the GPU that it leaves, where it has several. 400: no such GPU. 403: not yours to steer, or not a
        GPU that its owner may use. 409: no room there, another chip, out of service, or its memory cannot be moved.
        """
        given = MoveSpec.parse(request.data)
        return self._outcome(steering.move(person(request), self.get_object(), **given))

    @extend_schema(parameters=[LogsQuery], responses={(200, "text/plain"): OpenApiTypes.STR, **ERRORS})
    @action(detail=True)
    def logs(self, request: Request, pk: UUID) -> StreamingHttpResponse:
        """What the container has printed, as text; with `follow`, also what it prints until it ends.

        Output beyond the limit for one container is not kept. 403: for its owner and for operators only. 500,
        `output_unreadable`: its host has output that cannot be read.
        """
        query = LogsQuery.of(request)
        container = self.get_object()
        return reading.answer(request._request, container, follow=query["follow"], tail=query.get("tail"))

    @extend_schema(responses={200: GuestsSpec, **ERRORS})
    @action(detail=True)
    def guests(self, request: Request, pk: UUID) -> Response:
        """Who may open its application (`app`) beside its owner, by user name. 403: not yours to steer."""
        Query.of(request)
        container = self.get_object()
        require_steering(person(request), container, "see the guests of")
        return Response({"guests": guests.names(container)})

    @extend_schema(request=GuestsSpec, responses={200: GuestsSpec, **ERRORS})
    @guests.mapping.put
    def invite(self, request: Request, pk: UUID) -> Response:
        """Lets these people, by user name, open its application (`app`). These are all: whoever is not among them any
        more is cut off within seconds.

        400: there is no such active account. 403: not yours to steer. 409: it has ended, or has no `app`.
        """
        return Response({"guests": guests.invite(person(request), self.get_object(), request.data)})

    def _outcome(
        self, command: Command, done: int = status.HTTP_200_OK, ahead: Sequence[coming.Coming] = ()
    ) -> Response:
        result = finished(command)
        if isinstance(result, Response):
            return result
        container = result.container
        assert container is not None, "these commands are about containers"
        prefetch_related_objects([container], claims_with_gpus())
        message = result.message
        if result.kind in (Command.Kind.LAUNCH, Command.Kind.CHANGE):
            launched = result.kind == Command.Kind.LAUNCH
            said = price(container.movable, container.gpu_count) if launched else ""
            later = coming.said_to(container, ahead) if launched else ""
            message = " ".join(filter(None, (message, said, not_kept(container), later)))
        return Response({**_answer().to_representation(container), "message": message}, done)


@cache
def _answer() -> ContainerAnswer:
    """Made once: to find out the fields of two models takes longer than to read them. For who steered it."""
    return ContainerAnswer()


class Commands(ListModelMixin, RetrieveModelMixin, GenericViewSet[Command]):
    """What became of what people asked for. Operators and admins see everybody's commands, others their own."""

    queryset = Command.objects.all()
    serializer_class = CommandAnswer
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Command]:
        return (
            rights_of(person(self.request))
            .commands()
            .select_related("issued_by")
            .order_by("-number", "-created_at", "pk")
        )

    @extend_schema(parameters=[PageQuery], responses={200: CommandAnswer(many=True), **ERRORS})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Commands, youngest first. `done` is false while the scheduler has not answered."""
        PageQuery.of(request)
        return super().list(request, *args, **kwargs)

    @extend_schema(responses={200: CommandAnswer, **ERRORS})
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One command and its outcome, `done` or `refused`, with `message` in words. 404: none that you may see."""
        Query.of(request)
        return super().retrieve(request, *args, **kwargs)
