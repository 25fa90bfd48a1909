"""gpus/: every GPU, what is charged and held on it, and how it is shared."""

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.generics import GenericAPIView, get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from web.api.answers import CommandAnswer, GpuAnswer
from web.api.protocol.access import person
from web.api.protocol.lists import list_response
from web.api.protocol.outcome import ERRORS, decided
from web.api.protocol.queries import PageQuery, Query
from web.api.rows import GPUS, Row
from web.models import Gpu
from web.services import steering
from web.spec.requests import ComputeSpec, NoteSpec


class Gpus(GenericAPIView[Gpu]):
    """Every GPU: what it has, what containers hold by our account, and what the card itself shows.

    Sizes are bytes, `utilisation` is per cent, `temperature` degrees Celsius, `power` watts; null: the card does not
    tell. `present` is false for a card that was here once and is gone.
    """

    queryset = Gpu.objects.all()
    serializer_class = GpuAnswer

    @extend_schema(parameters=[PageQuery], responses={200: GpuAnswer(many=True), **ERRORS})
    def get(self, request: Request) -> HttpResponse:
        def rows() -> QuerySet[Gpu]:
            PageQuery.of(request)
            return self.get_queryset()

        return list_response(self, GPUS, rows)


class OneGpu(GenericAPIView[Gpu]):
    queryset = Gpu.objects.all()
    serializer_class = GpuAnswer
    lookup_field = "uuid"

    @extend_schema(responses={200: GpuAnswer, **ERRORS})
    def get(self, request: Request, uuid: str) -> Response:
        """One GPU, as in the list of all. 404: there was never one of this UUID."""
        Query.of(request)
        row: Row = get_object_or_404(Gpu.objects.values(*GPUS.columns), uuid=uuid)
        return Response(next(GPUS.answers([row])))

    @extend_schema(request=ComputeSpec, responses={200: CommandAnswer, 202: CommandAnswer, **ERRORS})
    def patch(self, request: Request, uuid: str) -> Response:
        """How containers that compute share it: `compute` is `turns` (one at a time, by weight) or `shared`.

        From now on, and after a restart too. For admins. 409: the driver cannot stop a container for another's turn, or
        the GPU is gone.
        """
        return decided(steering.set_compute(person(request), uuid, ComputeSpec.parse(request.data)["compute"]))


class DrainGpu(GenericAPIView[Gpu]):
    @extend_schema(request=NoteSpec, responses={200: CommandAnswer, 202: CommandAnswer, **ERRORS})
    def post(self, request: Request, uuid: str) -> Response:
        """Takes a GPU out of service: nothing new is placed on it, what runs there goes on. `note`: why. For admins.

        That holds over restarts. A fault of the card does the same. 409: the GPU is gone.
        """
        return decided(steering.drain_gpu(person(request), uuid, NoteSpec.parse(request.data)["note"]))


class UndrainGpu(GenericAPIView[Gpu]):
    @extend_schema(request=NoteSpec, responses={200: CommandAnswer, 202: CommandAnswer, **ERRORS})
    def post(self, request: Request, uuid: str) -> Response:
        """Puts it back into service. For admins."""
        return decided(steering.undrain_gpu(person(request), uuid, NoteSpec.parse(request.data)["note"]))
