"""Query parameters: declared, typed, and refused if unknown, since a filter that is mistyped would show everything."""

from typing import Any

from django.db.models import Q
from rest_framework import serializers
from rest_framework.pagination import PageNumberPagination
from rest_framework.request import Request

from web.models import State
from web.models.states import in_state
from web.spec.fields import StrictSerializer, TimeField


class Pages(PageNumberPagination):
    """Every list is paged, in one shape."""

    page_size = 100
    page_size_query_param = "page_size"
    max_page_size = 1000


class Query(StrictSerializer):
    """Text from a URL, so that "3" is a number and "true" is true here."""

    @classmethod
    def of(cls, request: Request) -> dict[str, Any]:
        """Only what was given. Raises Problem."""
        return cls.parse(request.query_params.dict())


class PageQuery(Query):
    page = serializers.CharField(required=False, help_text='A number, or "last".')
    page_size = serializers.IntegerField(required=False, min_value=1, max_value=Pages.max_page_size)


class SpanQuery(Query):
    def get_fields(self) -> dict[str, Any]:
        # "from" is a word of Python's, so it cannot be declared as an attribute.
        return {**super().get_fields(), "from": TimeField(required=False), "to": TimeField(required=False)}


class ContainerQuery(PageQuery):
    state = serializers.ChoiceField(
        State.choices,
        required=False,
        error_messages={"invalid_choice": f'"{{input}}" is none of {", ".join(State.values)}.'},
    )
    live = serializers.BooleanField(required=False, help_text="true: only those that have not ended; false: the ended.")
    owner = serializers.CharField(required=False)
    name = serializers.CharField(required=False)
    image = serializers.CharField(required=False)
    namespace = serializers.CharField(required=False, help_text="Of a Kubernetes cluster.")
    gpu = serializers.CharField(required=False, help_text="UUID.")
    node = serializers.CharField(required=False)
    planned = serializers.UUIDField(required=False, help_text="Runs of this planned launch.")
    ordering = serializers.ChoiceField(
        [sign + name for name in ("created_at", "started_at", "finished_at", "name", "priority") for sign in ("", "-")],
        required=False,
    )


_SAME = {
    "owner": "owner__username",
    "name": "name",
    "image": "image",
    "namespace": "namespace",
    "gpu": "claims__gpu__uuid",
    "node": "node__name",
    "planned": "planned",
}


def containers_matching(query: dict[str, Any]) -> Q:
    condition = Q(**{path: query[name] for name, path in _SAME.items() if name in query})
    if "state" in query:
        condition &= in_state(State(query["state"]))
    if "live" in query:
        condition &= Q(finished_at__isnull=query["live"])
    return condition
