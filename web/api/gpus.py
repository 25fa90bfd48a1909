"""gpus/: every GPU, and what is charged and held on it."""

from __future__ import annotations

from django.db.models import BigIntegerField, OuterRef, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request

from web.api.answers import GpuAnswer
from web.api.protocol.listed import listed
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery
from web.models import Claim, Gpu


def _sum_of_claims(field: str) -> Coalesce:
    live = Claim.objects.filter(gpu=OuterRef("pk"), container__finished_at=None).order_by()
    total = live.values("gpu").annotate(total=Sum(field)).values("total")
    return Coalesce(Subquery(total), Value(0), output_field=BigIntegerField())


class Gpus(GenericAPIView[Gpu]):
    """Every GPU: what it has, what containers hold by our account, and what the card itself shows.

    Sizes are bytes, `utilisation` is per cent, `temperature` degrees Celsius, `power` watts; null: the card does not
    tell. `present` is false for a card that was here once and is gone.
    """

    serializer_class = GpuAnswer

    def get_queryset(self) -> QuerySet[Gpu]:
        return Gpu.objects.select_related("node").annotate(
            charged=_sum_of_claims("used"), granted=_sum_of_claims("granted"), promised=_sum_of_claims("quota")
        )

    @extend_schema(parameters=[PageQuery], responses={200: GpuAnswer(many=True), **ERRORS})
    def get(self, request: Request) -> HttpResponse:
        def rows() -> QuerySet[Gpu]:
            PageQuery.of(request)
            return self.get_queryset()

        return listed(self, rows)
