"""announcements/: notices for everybody, and windows of maintenance."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from web.api.protocol.access import body, person
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery
from web.models import Announcement
from web.services.booked import announcements
from web.spec.booked import AnnouncementSpec


class AnnouncementAnswer(serializers.ModelSerializer[Announcement]):
    """A notice. With `begins_at` a window of maintenance: its nodes are drained then. `said`: all of it in words."""

    node = serializers.CharField(source="node.name", default=None)
    gpu = serializers.CharField(source="gpu.uuid", default=None)
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
        read_only_fields = fields


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

        With `begins_at` and `ends_at` it is a window of maintenance: whoever launches what may still run then is told,
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
