"""schema/ and docs/: the OpenAPI document, and Swagger UI over it with files that are served from here.

Both need no token: they say what can be asked, and nothing about this appliance.
"""

from functools import cache
from typing import Any

from django.http import HttpResponse
from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.request import Request

from web.spec.fields import StrictSerializer


class StrictExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Says in the document, too, that an unknown field is refused."""

    target_class = StrictSerializer
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema: dict[str, Any] = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        return {**schema, "additionalProperties": False}


class Schema(SpectacularAPIView):
    authentication_classes = []
    permission_classes = []
    renderer_classes = [OpenApiJsonRenderer]

    def _get_schema_response(self, request: Request) -> HttpResponse:
        return HttpResponse(_document(), OpenApiJsonRenderer.media_type)


@cache
def _document() -> bytes:
    """Made once: it takes half a second of a processor, and strangers may ask for it."""
    schema = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    made: bytes = OpenApiJsonRenderer().render(schema, renderer_context={})
    return made


class Docs(SpectacularSwaggerSplitView):
    authentication_classes = []
    permission_classes = []
    url_name = "schema"
