"""announcements/: notices for everybody, and windows of maintenance. reservations/: who has what when."""

from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from web.api.protocol.access import body, person
from web.api.protocol.answer import Answer
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery
from web.models import Announcement, Reservation
from web.services.booked import announcements, reservations, subscribed
from web.spec.booked import AnnouncementSpec, ReservationSpec


class AnnouncementAnswer(Answer[Announcement]):
    """A notice. With `begins_at` a window of maintenance: its nodes are drained then. `said`: all of it in words."""

    node = serializers.CharField(source="node.name", default=None, allow_null=True)
    gpu = serializers.CharField(source="gpu.uuid", default=None, allow_null=True)
    said = serializers.CharField()

    class Meta:
        model = Announcement
        fields = [
            "id",
            "message",
            "node",
            "gpu",
            "begins_at",
            "ends_at",
            "then",
            "made_by",
            "made_at",
            "begun_at",
            "said",
        ]


class Announcements(GenericViewSet[Any]):
    """Notices for everybody, and windows of maintenance."""

    queryset = Announcement.objects.none()
    serializer_class = AnnouncementAnswer
    lookup_value_converter = "int"

    @extend_schema(parameters=[PageQuery], responses={200: AnnouncementAnswer(many=True), **ERRORS})
    def list(self, request: Request) -> Response:
        """What is announced and not over, the next window first."""
        PageQuery.of(request)
        page = self.paginate_queryset(Announcement.objects.current(timezone.now()))
        return self.get_paginated_response(self.get_serializer(page, many=True).data)

    @extend_schema(request=AnnouncementSpec, responses={201: AnnouncementAnswer, **ERRORS})
    def create(self, request: Request) -> Response:
        """Tells everybody: a banner on each page, Attention, mail. For admins.

        With `begins_at` and `ends_at` it is a window of maintenance: a launch of what may still run then is warned,
        and at `begins_at` the nodes are drained, and containers `stay`, `move` to host memory, or `end`. 400: in the
        past, or without an end.
        """
        made = announcements.announce(person(request), body(request))
        return Response(self.get_serializer(made).data, status.HTTP_201_CREATED)

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def destroy(self, request: Request, pk: int) -> Response:
        """Withdraws a notice; a window that has not begun does not begin. Drained nodes stay drained. For admins."""
        announcements.withdraw(person(request), pk)
        return Response(status=status.HTTP_204_NO_CONTENT)


class ReservedGpuAnswer(serializers.Serializer[Any]):
    uuid = serializers.CharField(source="gpu.uuid")
    index = serializers.IntegerField(source="gpu.index")
    node = serializers.CharField(source="gpu.node.name")
    short = serializers.IntegerField(help_text="Bytes that lack now, or will lack when it begins.")


class ReservationAnswer(Answer[Reservation]):
    """GPU memory that is reserved. `begins_at`, `ends_at`: the time in force, or the next; `gpu_memory` null: all."""

    user = serializers.CharField(source="user.username", default=None, allow_null=True)
    group = serializers.CharField(source="group.name", default=None, allow_null=True)
    gpus = ReservedGpuAnswer(source="cards", many=True)
    begins_at = serializers.SerializerMethodField()
    ends_at = serializers.SerializerMethodField()

    class Meta:
        model = Reservation
        fields = [
            "id", "user", "group", "gpu_memory", "gpus", "starts", "zone", "minutes", "repeat", "times", "if_short",
            "note", "made_by", "made_at", "over_at", "begins_at", "ends_at",
        ]  # fmt: skip

    def get_begins_at(self, row: Reservation) -> datetime | None:
        span = row.next_span(timezone.now())
        return span[0] if span else None

    def get_ends_at(self, row: Reservation) -> datetime | None:
        span = row.next_span(timezone.now())
        return span[1] if span else None


class Reservations(GenericViewSet[Any]):
    """GPU memory for people, from one time to another."""

    queryset = Reservation.objects.none()
    serializer_class = ReservationAnswer
    lookup_value_converter = "int"

    @extend_schema(parameters=[PageQuery], responses={200: ReservationAnswer(many=True), **ERRORS})
    def list(self, request: Request) -> Response:
        """The reservations of which something is still to come, in the order in which they were made."""
        PageQuery.of(request)
        page = self.paginate_queryset(Reservation.objects.open(timezone.now()).whole())
        return self.get_paginated_response(self.get_serializer(page, many=True).data)

    @extend_schema(request=ReservationSpec, responses={201: ReservationAnswer, **ERRORS})
    def create(self, request: Request) -> Response:
        """Reserves GPU memory, for yourself or a group of yours; admins for anybody, without an allowance.

        `starts` is a local time in `zone`, on the grid of 30 minutes; `repeat` `daily` or `weekly` with `times` is a
        series. `gpus`: how many, or which ones by UUID; `gpu_memory` null: all that they have. `if_short`: where
        others cannot be moved, it begins `short`, or they `end`. 403: beyond your allowance. 409: it does not fit at
        some moment; the message says who has the memory then.
        """
        made = reservations.reserve(person(request), body(request))
        answer = Reservation.objects.whole().get(pk=made.pk)
        return Response(self.get_serializer(answer).data, status.HTTP_201_CREATED)

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def destroy(self, request: Request, pk: int) -> Response:
        """Takes back what has not begun, and ends what has: its priority ends, and nobody is ended by that."""
        reservations.end(person(request), pk)
        return Response(status=status.HTTP_204_NO_CONTENT)


class CalendarAnswer(serializers.Serializer[Any]):
    url = serializers.CharField(help_text="To subscribe to, as iCalendar. It is shown once.")


class CalendarAddress(APIView):
    @extend_schema(request=None, responses={201: CalendarAnswer, **ERRORS})
    def post(self, request: Request) -> Response:
        """A new address of your calendar, which needs no signing in and opens nothing else; the one before is void."""
        path = reverse("calendar_feed", args=[subscribed.new_key(person(request))])
        return Response({"url": request.build_absolute_uri(path)}, status.HTTP_201_CREATED)
