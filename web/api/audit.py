"""audit/: what people did and tried to do."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from web.api.protocol.access import person, who_may
from web.api.protocol.answer import Answer
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery, Query, SpanQuery
from web.audit import reading, verified
from web.models import AuditEntry
from web.people.roles import Deed
from web.services import auditing


class AuditQuery(SpanQuery, PageQuery):
    action = serializers.CharField(required=False)
    actor = serializers.CharField(required=False)
    subject = serializers.CharField(required=False)
    name = serializers.CharField(
        required=False, max_length=255, help_text="Of what it was done to: a container's, a person's, a group's."
    )
    before = serializers.IntegerField(
        required=False, min_value=1, max_value=2**63 - 1, help_text="Only entries with a smaller id: older ones."
    )


class AuditAnswer(Answer[AuditEntry]):
    """Who (`actor`, from `address`) did what (`action`) to what (`subject`), with the figures in `detail`."""

    class Meta:
        model = AuditEntry
        fields = ["id", "at", "action", "actor", "address", "subject", "detail", "seal"]


class Audit(ListAPIView[AuditEntry]):
    """What people did and tried to do, newest first. For admins; 403 for others.

    `seal` chains each entry to the one before it: `manage.py verify_audit` finds what was changed or deleted.
    """

    permission_classes = who_may(Deed.READ_AUDIT)
    serializer_class = AuditAnswer

    def get_queryset(self) -> QuerySet[AuditEntry]:
        query = AuditQuery.of(self.request)
        found = reading.entries(
            query.get("actor", ""), query.get("name", ""), query.get("from"), query.get("to"), query.get("action", "")
        )
        paths = {"subject": "subject", "before": "id__lt"}
        return found.filter(**{path: query[name] for name, path in paths.items() if name in query}).order_by("-id")

    @extend_schema(parameters=[AuditQuery], responses={200: AuditAnswer(many=True), **ERRORS})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.list(request, *args, **kwargs)


class VerifiedAnswer(serializers.Serializer[Any]):
    """`ok` null: it was never verified. `under_way`: since when it is being verified now, else null."""

    ok = serializers.BooleanField(allow_null=True)
    at = serializers.DateTimeField(allow_null=True)
    message = serializers.CharField(allow_blank=True)
    under_way = serializers.DateTimeField(allow_null=True)
    trouble = serializers.CharField(allow_blank=True, help_text="Why the last attempt did not finish.")


class Verify(APIView):
    permission_classes = who_may(Deed.READ_AUDIT)

    @extend_schema(responses={200: VerifiedAnswer, **ERRORS})
    def get(self, request: Request) -> Response:
        """How the log was found when it was verified last, by anybody or by `manage.py verify_audit`. For admins."""
        Query.of(request)
        return Response(_verified())

    @extend_schema(request=None, responses={202: VerifiedAnswer, **ERRORS})
    def post(self, request: Request) -> Response:
        """Begins to verify the log beside everything else; GET tells what was found. 409: it is under way already."""
        auditing.verify(person(request))
        return Response(_verified(), 202)


def _verified() -> Any:
    last = verified.last()
    at, ok, message = last or (None, None, "")
    answer = {"ok": ok, "at": at, "message": message}
    return VerifiedAnswer({**answer, "under_way": verified.under_way(), "trouble": verified.trouble()}).data
