"""What may be said of a node that is to join."""

from __future__ import annotations

from rest_framework import serializers

from web.spec.fields import StrictSerializer, StrictText

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class NodeNameSpec(StrictSerializer):
    """Its host name, or another that it is to have as `GPUSHARE_NODE`."""

    name = serializers.RegexField(
        NAME, max_length=63, error_messages={"invalid": "A node's name is letters, digits, dots and hyphens."}
    )


class JoinSpec(StrictSerializer):
    """A host that has been invited. `schema` is the last change of the database that its program knows."""

    token = StrictText(max_length=200)
    node = StrictText(max_length=255)
    release = StrictText(max_length=64)
    schema = StrictText(max_length=255)
