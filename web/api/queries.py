"""Query parameters: declared, typed, and refused if unknown, since a filter that is mistyped would show everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Q
from rest_framework import serializers
from rest_framework.request import Request

from web.fields import StrictSerializer
from web.models import State


class Query(StrictSerializer):
    """Text from a URL, so that "3" is a number and "true" is true here."""

    @classmethod
    def of(cls, request: Request) -> dict[str, Any]:
        """Only what was given. Raises Problem."""
        return cls.parse(request.query_params.dict())


class PageQuery(Query):
    page = serializers.CharField(required=False, help_text='A number, or "last".')
    page_size = serializers.IntegerField(required=False, min_value=1, max_value=1000)


class ContainerQuery(PageQuery):
    state = serializers.ChoiceField(State.choices, required=False)
    live = serializers.BooleanField(required=False, help_text="true: only those that have not ended; false: the ended.")
    owner = serializers.CharField(required=False)
    name = serializers.CharField(required=False)
    image = serializers.CharField(required=False)
    gpu = serializers.CharField(required=False, help_text="UUID.")
    ordering = serializers.ChoiceField(
        [sign + name for name in ("created_at", "started_at", "finished_at", "name", "priority") for sign in ("", "-")],
        required=False,
    )


_ENDED = Q(finished_at__isnull=False)
_STARTED = Q(finished_at=None, started_at__isnull=False)
# `Container.state` as conditions; a test holds the two together.
STATES: Mapping[str, Q] = {
    State.KILLED: _ENDED & Q(kill_requested_at__isnull=False),
    State.EXITED: _ENDED & Q(kill_requested_at=None, exit_code=0),
    State.FAILED: _ENDED & Q(kill_requested_at=None) & (Q(exit_code=None) | ~Q(exit_code=0)),
    State.CREATED: Q(finished_at=None, started_at=None),
    State.PAUSED: _STARTED & Q(paused_at__isnull=False),
    State.SUSPENDED: _STARTED & Q(paused_at=None, suspended_since__isnull=False),
    State.RUNNING: _STARTED & Q(paused_at=None, suspended_since=None),
}
_SAME = {"owner": "owner__username", "name": "name", "image": "image", "gpu": "claims__gpu__uuid"}


def containers_matching(query: dict[str, Any]) -> Q:
    condition = Q(**{path: query[name] for name, path in _SAME.items() if name in query})
    if "state" in query:
        condition &= STATES[query["state"]]
    if "live" in query:
        condition &= Q(finished_at__isnull=query["live"])
    return condition
