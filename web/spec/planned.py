"""What a launch may say of when it begins: after others, at a time, on a person's word, once, or many times over.

A launch with one of PLANS is planned. Each field is also taken as people write it on a command line or in the form:
`--after train:any`, `--sweep lr=0.1,0.01`, `--sweep 40`.
"""

import re
from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from web.spec.fields import StrictBoolean, StrictInteger, StrictNumber, StrictSerializer, TimeField
from web.spec.requests import FIELDS, LONGEST_SECONDS, PRIORITY_HIGHEST, PRIORITY_LOWEST, LaunchSpec

MOST_RUNS = 10_000  # of a sweep
MOST_AT_ONCE = 1000
MOST_PARENTS = 64
MOST_RETRIES = 100
LONGEST_VALUE = 1000  # characters
LONGEST_VALUES = 1 << 20  # characters, of all of a sweep
ENDED = ("ok", "any", "failed")
PLANS = ("queue", "after", "begin_at", "hold", "sweep")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_STANDS_FOR = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PARENT = {
    "type": "object",
    "properties": {"container": {"type": "string"}, "sweep": {"type": "string"}, "ended": {"enum": list(ENDED)}},
    "description": "`container` or `sweep`: a name or an id. `ended`: ok (the usual), any, or failed.",
}


@extend_schema_field({"type": "array", "items": {"oneOf": [_PARENT, {"type": "string"}]}, "maxItems": MOST_PARENTS})
class AfterField(serializers.Field[Any, Any, Any, Any]):
    """What has to have ended: [{"name", "ended"}], of {"container"|"sweep", "ended"} or "NAME:any"."""

    def to_internal_value(self, data: Any) -> list[dict[str, str]]:
        if not isinstance(data, list) or len(data) > MOST_PARENTS:
            raise serializers.ValidationError(f"This has to be a list of at most {MOST_PARENTS}, such as train:ok.")
        return [_parent(each) for each in data]

    def to_representation(self, value: Any) -> Any:
        return value


def _parent(given: Any) -> dict[str, str]:
    if isinstance(given, str):
        name, _, ended = given.strip().partition(":")
        given = {"container": name, **({"ended": ended} if ended else {})}
    if not isinstance(given, Mapping) or given.keys() - {"container", "sweep", "ended"}:
        raise serializers.ValidationError("Each is an object of container or sweep, and ended.")
    named = [given[kind] for kind in ("container", "sweep") if kind in given]
    if len(named) != 1 or not isinstance(named[0], str) or not 0 < len(named[0]) <= 63:
        raise serializers.ValidationError("Each names one container or one sweep.")
    ended = given.get("ended", "ok")
    if ended not in ENDED:
        raise serializers.ValidationError(f"{str(ended)[:40]!r} is none of {', '.join(ENDED)}.")
    return {"name": named[0], "ended": ended}


@extend_schema_field(
    {
        "oneOf": [
            {"type": "object", "properties": {
                "name": {"type": "string"}, "count": {"type": "integer", "minimum": 1, "maximum": MOST_RUNS},
                "values": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MOST_RUNS}}},
            {"type": "string", "example": "lr=0.1,0.01"},
        ]
    }
)  # fmt: skip
class SweepField(serializers.Field[Any, Any, Any, Any]):
    """{"values": […]} or {"count": N}, with a `name` for {value}; or text: "lr=0.1,0.01", "a,b,c", "40"."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        given = _of_text(data) if isinstance(data, str) else data
        if not isinstance(given, Mapping) or given.keys() - {"name", "values", "count"}:
            raise serializers.ValidationError("A sweep is an object of values or count, and perhaps name.")
        name, values, count = given.get("name", ""), given.get("values"), given.get("count")
        if not isinstance(name, str) or (name and not _WORD.fullmatch(name)):
            raise serializers.ValidationError("The name of a sweep's value has letters, digits and underscores.")
        if (values is None) == (count is None):
            raise serializers.ValidationError("A sweep has either values or a count.")
        if values is not None:
            return {"name": name, "values": _values(values)}
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_RUNS:
            raise serializers.ValidationError(f"A sweep has 1 to {MOST_RUNS:,} runs.")
        return {"name": name, "count": count}

    def to_representation(self, value: Any) -> Any:
        return value


def _of_text(text: str) -> dict[str, Any]:
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 9:
        return {"count": int(text)}
    name, given, values = text.partition("=")
    name, values = (name.strip(), values) if given and _WORD.fullmatch(name.strip()) else ("", text)
    return {"name": name, "values": [value.strip() for value in values.split(",")] if values else []}


def _values(values: Any) -> list[str]:
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_RUNS:
        raise serializers.ValidationError(f"A sweep has 1 to {MOST_RUNS:,} values.")
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in values]
    texts = [str(value) if number else value for value, number in zip(values, numbers, strict=True)]
    if not all(isinstance(text, str) and len(text) <= LONGEST_VALUE and "\0" not in text for text in texts):
        raise serializers.ValidationError(f"Each value is a number, or text of at most {LONGEST_VALUE} characters.")
    if sum(map(len, texts)) > LONGEST_VALUES:
        raise serializers.ValidationError("The values together are longer than 1 MiB.")
    return texts


_NONE: dict[str, Any] = {"required": False, "allow_null": True, "default": None}
_AT_ONCE: dict[str, Any] = {"min_value": 1, "max_value": MOST_AT_ONCE}
_RETRIES: dict[str, Any] = {"min_value": 0, "max_value": MOST_RETRIES}
_PAUSE: dict[str, Any] = {"min_value": 0, "max_value": LONGEST_SECONDS}


class PlannedSpec(LaunchSpec):
    """A launch, and when it begins."""

    queue = StrictBoolean(
        required=False,
        default=False,
        label="Queue it: start it when its whole quota is free",
        help_text="Start it when its whole quota is free, and not before: until then it takes no host memory",
    )
    after = AfterField(
        required=False, default=list, label="Begin after", help_text="train, prepare:any or check:failed"
    )
    begin_at = TimeField(label="Not before", help_text="An ISO time, such as 2027-01-31T20:00Z", **_NONE)
    hold = StrictBoolean(
        required=False,
        default=False,
        label="Hold it until it is released",
        help_text="Hold it until it is released",
    )
    sweep = SweepField(
        label="Sweep",
        help_text="lr=0.1,0.01 or 40: one run for each value; {i}, {value} or {lr} stand for it",
        **_NONE,
    )
    at_once = StrictInteger(label="Runs at once", help_text="Of a sweep; empty: as many as fit", **_AT_ONCE, **_NONE)
    retries = StrictInteger(required=False, default=0, label="Retries", help_text="Of each run that fails", **_RETRIES)
    retry_pause = StrictNumber(label="Pause before a retry (seconds)", help_text="Empty: 60", **_PAUSE, **_NONE)

    def validate_name(self, value: str) -> str:
        super().validate_name(_STANDS_FOR.sub("x", value))
        return value

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        planned = is_planned(attrs)
        for name in ("retries", "retry_pause"):
            if attrs[name] and not planned:
                raise serializers.ValidationError({name: ["This is for planned launches: give queue, too."]})
        if attrs["at_once"] and not attrs["sweep"]:
            raise serializers.ValidationError({"at_once": ["This is for a sweep."]})
        if planned and attrs["restart"]:
            raise serializers.ValidationError({"restart": ["A planned launch has retries instead."]})
        if attrs["sweep"]:
            _check_filled(attrs)
        elif "{" in attrs["name"]:
            raise serializers.ValidationError({"name": ["{i} and {value} are for a sweep."]})
        if attrs["begin_at"]:
            attrs["begin_at"] = attrs["begin_at"].isoformat()
        return attrs


class EditSpec(StrictSerializer):
    """What may be changed of a planned launch until it has ended."""

    at_once = StrictInteger(required=False, **_AT_ONCE)
    priority = StrictInteger(required=False, min_value=PRIORITY_LOWEST, max_value=PRIORITY_HIGHEST)
    after = AfterField(required=False)
    begin_at = TimeField(required=False, allow_null=True)
    retries = StrictInteger(required=False, **_RETRIES)
    retry_pause = StrictNumber(required=False, **_PAUSE)


PLANNING = tuple(name for name in dict(PlannedSpec().fields.items()) if name not in FIELDS)


def is_planned(spec: Mapping[str, Any]) -> bool:
    return any(spec[name] for name in PLANS)


def _check_filled(attrs: Mapping[str, Any]) -> None:
    """With the longest value, a run is a launch that could be asked for by itself."""
    sweep = attrs["sweep"]
    longest = max(sweep.get("values", [""]), key=len)
    filled = fill(attrs, MOST_RUNS, longest, sweep["name"])
    for name in ("command", "env"):
        try:
            FIELDS[name].run_validation(filled[name])
        except serializers.ValidationError as error:
            raise serializers.ValidationError({name: error.detail}) from None


def fill(spec: Mapping[str, Any], run: int, value: str, variable: str = "") -> dict[str, Any]:
    """The launch of one run of a sweep: {i}, {value} and its own name stand for them in `command` and `env`."""

    means = {"i": str(run), "value": value, **({variable: value} if variable else {})}

    def filled(text: str) -> str:
        return _STANDS_FOR.sub(lambda found: means.get(found[1], found[0]), text)  # once: a value may have braces

    return {
        **spec,
        "command": [filled(word) for word in spec["command"]],
        "env": {name: filled(text) for name, text in spec["env"].items()},
    }


def name_of_run(name: str, run: int, attempt: int, value: str = "", variable: str = "", *, sweep: bool) -> str:
    """NAME of a launch, NAME-0007 of a sweep's run, and .2 behind it for its second attempt.

    A name with {i} or {value} in it is filled in; what cannot stand in a name becomes a dash.
    """
    behind = f".{attempt}" if attempt > 1 else ""
    if sweep and "{" in name:
        full = fill({"command": [name], "env": {}}, run, value, variable)["command"][0]
        full = re.sub(r"[^a-zA-Z0-9_.-]+", "-", full).lstrip("_.-") or "run"
    else:
        full = f"{name}-{run:04d}" if sweep else name
    return full[: 63 - len(behind)] + behind
