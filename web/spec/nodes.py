"""What may be said of a node, and of one that is to join."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from web.spec.constraints import LABEL
from web.spec.fields import StrictSerializer, StrictText

NODE = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
LONGEST = 255


@extend_schema_field({"type": "object", "additionalProperties": {"type": "string", "nullable": True}})
class LabelsField(serializers.Field[dict[str, Any], Any, dict[str, Any], Any]):
    """Labels: name → value; null takes one away."""

    def to_internal_value(self, data: Any) -> dict[str, str | None]:
        if not isinstance(data, dict):
            raise serializers.ValidationError('This has to be an object of labels: {"disk": "ssd"}.')
        for name, value in data.items():
            if not isinstance(name, str) or not LABEL.fullmatch(name):
                raise serializers.ValidationError(
                    f"{str(name)[:64]!r} is not a label name: up to 63 letters, digits, dots, dashes and underscores."
                )
            if value is None:
                continue
            if not isinstance(value, str) or len(value) > LONGEST or not value.isprintable():
                raise serializers.ValidationError(f"The value of {name} has to be at most {LONGEST} printable signs.")
        return data

    def to_representation(self, value: dict[str, Any]) -> dict[str, Any]:
        return value


class LabelsSpec(StrictSerializer):
    labels = LabelsField()


class NodeNameSpec(StrictSerializer):
    """Its host name, or another that it is to have as `GPUSHARE_NODE`."""

    name = serializers.RegexField(
        NODE, max_length=63, error_messages={"invalid": "A node's name is letters, digits, dots and hyphens."}
    )


class JoinSpec(StrictSerializer):
    """A host that has been invited. `schema` is the last change of the database that its program knows."""

    token = StrictText(max_length=200)
    node = StrictText(max_length=255)
    release = StrictText(max_length=64)
    schema = StrictText(max_length=255)
