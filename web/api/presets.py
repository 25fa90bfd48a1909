"""presets/: launches that admins have written for others to click."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.mixins import DestroyModelMixin, ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from web.api.protocol.access import person
from web.api.protocol.answer import Answer
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery, Query
from web.models import Preset
from web.services import presets
from web.spec.presets import PresetSpec


class PresetAnswer(Answer[Preset]):
    spec = serializers.DictField(help_text="The body of a launch; {user} in its volumes is the owner's name.")
    changes = serializers.ListField(
        child=serializers.CharField(), help_text="Fields that people are offered to change."
    )

    class Meta:
        model = Preset
        fields = ["id", "name", "icon", "text", "spec", "changes"]


class Presets(ListModelMixin, RetrieveModelMixin, DestroyModelMixin, GenericViewSet[Preset]):
    """Launches to click. Everybody sees them; admins write them."""

    queryset = Preset.objects.all()
    serializer_class = PresetAnswer
    lookup_value_converter = "int"

    @extend_schema(parameters=[PageQuery], responses={200: PresetAnswer(many=True), **ERRORS})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The presets that people may click, by name."""
        PageQuery.of(request)
        return super().list(request, *args, **kwargs)

    @extend_schema(responses={200: PresetAnswer, **ERRORS})
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One. 404: an admin may have removed it."""
        Query.of(request)
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=PresetSpec, responses={201: PresetAnswer, **ERRORS})
    def create(self, request: Request) -> Response:
        """Makes one. 400: `spec` is not a launch, and `field` says where. 409: the name is taken."""
        return Response(PresetAnswer(presets.save(person(request), request.data)).data, status.HTTP_201_CREATED)

    @extend_schema(request=PresetSpec, responses={200: PresetAnswer, **ERRORS})
    def update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Writes one anew, as a whole."""
        return Response(PresetAnswer(presets.save(person(request), request.data, self.get_object())).data)

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Removes one. Containers launched from it continue."""
        return super().destroy(request, *args, **kwargs)

    def perform_destroy(self, instance: Preset) -> None:
        presets.remove(person(self.request), instance)
