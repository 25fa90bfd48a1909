"""Strict fields: what is not exactly right is refused, never bent into shape, and an unknown field is never ignored.

The REST framework's own fields take "yes" for true, 3 for "3" and "3" for 3. A launch that means something else than
its author thinks is worse than one that is refused. Declaring the input this way also writes the OpenAPI schema.
"""

import math
import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.utils.encoding import force_str
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from web.errors import Problem
from web.models import Happening
from web.sizes import parse_size
from web.spec import periods
from web.spec.inside.environment import check_environment
from web.texts import fault_of

MOST_GPUS = 16  # of one container: as many as a lease page has slots (shim/lease.h)
LONGEST_COMMAND = 32768  # characters, with one between two words
LONGEST_WRITTEN = 5 * LONGEST_COMMAND  # as a shell reads it: a quotation mark may be quoted by five
NOTHING = "none"  # what people write for an empty list


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses unknown fields. `parse` gives the validated values or raises the first Problem."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if isinstance(data, Mapping):
            for name in data:
                if name not in self.fields:
                    known = ", ".join(name for name, field in self.fields.items() if not field.read_only)
                    message = f"There is no field of this name. There are: {known}."
                    raise serializers.ValidationError({force_str(name)[:64]: [message]}, code="unknown_field")
            for name, value in data.items():
                if fault := fault_of(value):
                    raise serializers.ValidationError({name: [f"This may not hold {fault}."]})
        return dict(super().to_internal_value(data))

    @classmethod
    def parse(cls, data: Any) -> dict[str, Any]:
        serializer = cls(data=data)
        if not serializer.is_valid():
            raise problem_from(serializer.errors)
        return dict(serializer.validated_data)


def problem_from(errors: Any) -> Problem:
    """The first of the REST framework's validation errors, which come nested by field, as a Problem."""
    path: list[str] = []
    while not isinstance(errors, str):
        if isinstance(errors, Mapping):
            name, errors = next(iter(errors.items()))
            path.append(str(name))
        else:
            # A list holds either messages, or one (perhaps empty) mapping an item.
            index, errors = next((i, item) for i, item in enumerate(errors) if item)
            if not isinstance(errors, str):
                path.append(str(index))
    field = ".".join(name for name in path if name != "non_field_errors")
    code = getattr(errors, "code", "invalid")
    message = f'"{field}" is required.' if code == "required" else str(errors)
    code = code if code in ("required", "unknown_field", "forbidden") else "invalid"
    return Problem(code, message, 400, field)


class StrictText(serializers.CharField):
    """Text as it was sent, and not a number that could be read as text."""

    default_error_messages = {"invalid": "This has to be text."}

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, **options})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class PlainField(serializers.Field[Any, Any, Any, Any]):
    """Shown as it is kept."""

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field(serializers.BooleanField())
class StrictBoolean(PlainField):
    default_error_messages = {"invalid": "This has to be true or false."}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid")
        return data


class StrictInteger(serializers.IntegerField):
    default_error_messages = {"invalid": "This has to be a whole number."}

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


class StrictNumber(serializers.FloatField):
    """A finite number."""

    default_error_messages = {"invalid": "This has to be a number."}

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        try:
            number = float(data)
        except OverflowError:
            self.fail("invalid")
        if not math.isfinite(number):
            self.fail("invalid")
        # -0.0 is 0.0: PostgreSQL's jsonb keeps no sign of a zero, and the audit log would look changed.
        return number + 0.0


@extend_schema_field({"oneOf": [{"type": "integer", "minimum": 2**20}, {"type": "string", "example": "2GiB"}]})
class SizeField(PlainField):
    """Bytes, or text such as "2GiB". At least `smallest`."""

    def __init__(self, *, smallest: int, **options: Any) -> None:
        super().__init__(**options)
        self.smallest = smallest

    def to_internal_value(self, data: Any) -> int:
        try:
            return parse_size(data, self.smallest)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from None


@extend_schema_field(OpenApiTypes.STR)
class TimeField(serializers.Field[datetime, Any, str, Any]):
    """An ISO time, or a date: its midnight UTC. A time without a zone is UTC."""

    def to_internal_value(self, data: Any) -> datetime:
        if not isinstance(data, str):
            raise serializers.ValidationError("This has to be a time in ISO form.")
        try:
            return periods.point(data)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from None

    def to_representation(self, value: datetime) -> str:
        return value.isoformat()


def words_of(text: str) -> list[str]:
    """A command as a shell would split it. Raises ValueError.

    Text that is longer than any command is one word, which is refused as too long: to find the end of a word of 3 MiB
    takes `shlex` minutes, as it writes the word anew with each character.
    """
    return shlex.split(text) if len(text) <= LONGEST_WRITTEN else [text]


@extend_schema_field({"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]})
class WordsField(PlainField):
    """A command: a list of words, or one text that is split as a shell would."""

    def to_internal_value(self, data: Any) -> list[str]:
        if isinstance(data, str):
            try:
                data = words_of(data)
            except ValueError as error:
                raise serializers.ValidationError(f"This cannot be split into words: {error}.") from None
        if not isinstance(data, list) or not all(isinstance(word, str) for word in data):
            raise serializers.ValidationError("This has to be a list of words, or one text.")
        if sum(len(word) + 1 for word in data) > LONGEST_COMMAND:
            raise serializers.ValidationError(f"This is longer than {LONGEST_COMMAND} characters.")
        return data


@extend_schema_field(
    {
        "oneOf": [
            {"type": "integer", "minimum": 1, "maximum": MOST_GPUS},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MOST_GPUS, "uniqueItems": True},
        ]
    }
)
class GpusField(PlainField):
    """A number of GPUs, or a list of their UUIDs."""

    def to_internal_value(self, data: Any) -> int | list[str]:
        if isinstance(data, int) and not isinstance(data, bool):
            if not 1 <= data <= MOST_GPUS:
                raise serializers.ValidationError(f"This has to be 1 or more, and not more than {MOST_GPUS}.")
            return data
        if not isinstance(data, list) or not all(isinstance(uuid, str) for uuid in data):
            raise serializers.ValidationError("This has to be a number of GPUs, or a list of their UUIDs.")
        if not 1 <= len(data) <= MOST_GPUS or len(set(data)) != len(data):
            raise serializers.ValidationError(f"This has to name 1 to {MOST_GPUS} GPUs, each once.")
        return data


@extend_schema_field({"type": "object", "additionalProperties": {"type": "string"}})
class EnvironmentField(PlainField):
    """Environment variables: name → value."""

    def to_internal_value(self, data: Any) -> dict[str, str]:
        return check_environment(data)


@extend_schema_field({"type": "array", "items": {"type": "string"}, "maxItems": 64})
class ItemsField(PlainField):
    """At most 64 texts, each of which `check` brings into its normal form or refuses."""

    def __init__(self, check: Callable[[str], str], **options: Any) -> None:
        super().__init__(**options)
        self.check = check

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list) or not all(isinstance(item, str) for item in data) or len(data) > 64:
            raise serializers.ValidationError(f"This has to be a list of at most 64 texts: {self.help_text}.")
        return [self.check(item) for item in data]


@extend_schema_field(
    {"oneOf": [{"type": "array", "items": {"enum": Happening.values}}, {"type": "string", "example": "ended,killed"}]}
)
class HappeningsField(PlainField):
    """Of what its owner is notified: a list, or one text such as "ended,killed" or "none"."""

    def to_internal_value(self, data: Any) -> list[str]:
        if isinstance(data, str):
            data = [] if data.strip() == NOTHING else data.replace(",", " ").split() or [data]
        if not isinstance(data, list):
            raise serializers.ValidationError(f"This has to be a list of {', '.join(Happening)}.")
        if unknown := [word for word in data if word not in Happening.values]:
            said = str(unknown[0])[:40]
            raise serializers.ValidationError(f"{said!r} is none of {', '.join(Happening)}; {NOTHING!r} is nothing.")
        return [word for word in Happening.values if word in data]
