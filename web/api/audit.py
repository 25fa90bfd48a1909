"""audit/: what people did and tried to do."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from web.api.protocol.access import IsSignedIn, MayReadAudit, TokenAllows
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery, SpanQuery
from web.models import AuditEntry


class AuditQuery(SpanQuery, PageQuery):
    action = serializers.CharField(required=False)
    actor = serializers.CharField(required=False)
    subject = serializers.CharField(required=False)


class AuditAnswer(serializers.ModelSerializer[AuditEntry]):
    """Who (`actor`, from `address`) did what (`action`) to what (`subject`), with the figures in `detail`."""

    class Meta:
        model = AuditEntry
        fields = ["id", "at", "action", "actor", "address", "subject", "detail", "seal"]
        read_only_fields = fields


class Audit(ListAPIView[AuditEntry]):
    """What people did and tried to do, newest first. For admins; 403 for others.

    `seal` chains each entry to the one before it: `manage.py verify_audit` finds what was changed or deleted.
    """

    permission_classes = [IsSignedIn, TokenAllows, MayReadAudit]
    serializer_class = AuditAnswer

    def get_queryset(self) -> QuerySet[AuditEntry]:
        query = AuditQuery.of(self.request)
        paths = {"action": "action", "actor": "actor", "subject": "subject", "from": "at__gte", "to": "at__lt"}
        rows = AuditEntry.objects.filter(**{path: query[name] for name, path in paths.items() if name in query})
        return rows.order_by("-id")

    @extend_schema(parameters=[AuditQuery], responses={200: AuditAnswer(many=True), **ERRORS})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.list(request, *args, **kwargs)
