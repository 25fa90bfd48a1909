"""The launch form: from what is typed to the body that REST takes, back from an earlier launch, and on as a command.

Which fields there are, and of what kind each is, `LaunchSpec` says; here is how people write each kind.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.http import QueryDict
from rest_framework import serializers

from web.errors import Problem
from web.models import Container, Shortage
from web.sizes import exact_size
from web.spec.fields import (
    NOTHING,
    EnvironmentField,
    GpusField,
    HappeningsField,
    ItemsField,
    SizeField,
    StrictBoolean,
    WordsField,
    problem_from,
)
from web.spec.planned import PLANNING, PlannedSpec
from web.spec.requests import asked_for
from web.spec.written import NO, WRITTEN, YES, number, read

# What has a place of its own in the template; all else follows there in the order of the list.
PLACED = ("image", "command", "gpu_memory", "gpus", "node", "name", "env", "on_shortage", *PLANNING)


def fields() -> dict[str, dict[str, Any]]:
    """What the template has to know of each field."""
    return {name: _shown(name, field) for name, field in WRITTEN.items()}


def _shown(name: str, field: Any) -> dict[str, Any]:
    area = isinstance(field, ItemsField | EnvironmentField)
    return {
        "name": name,
        "label": field.label,
        "hint": f"One a line: {field.help_text}" if area else field.help_text,
        "area": area,
        "code": area or isinstance(field, WordsField),
        "required": field.required,
        "switch": (NO if field.default else YES) if isinstance(field, StrictBoolean) else "",
        "group": "later" if name in PLANNING else "" if name in PLACED else "more",
    }


def spec_of(form: QueryDict) -> dict[str, Any]:
    """The body of a launch. What is empty is left out; sizes and names are judged by the one who launches."""
    spec: dict[str, Any] = {"image": ""}
    for name, field in WRITTEN.items():
        text = form.get(name, "")
        if not text.strip() or isinstance(field, GpusField) or text == Shortage.WAIT:
            continue
        spec[name] = read(name, text)
    if gpus := form.getlist("gpus"):
        spec["gpus"] = gpus
    elif (count := form.get("gpu_count", "").strip()) not in ("", "1"):
        spec["gpus"] = number(int, count, "gpus")
    return spec


def faults_of(form: QueryDict) -> dict[str, str]:
    """What is wrong with each field, by its name: all that can be known without launching."""
    found: dict[str, str] = {}
    spec: dict[str, Any] = {"image": form.get("image", "").strip()}
    for name in WRITTEN:
        try:
            part = QueryDict(mutable=True)
            for key in (name, *(("gpu_count",) if name == "gpus" else ())):
                part.setlist(key, form.getlist(key))
            spec |= {key: value for key, value in spec_of(part).items() if key == name}
        except Problem as problem:
            found[name] = problem.message
    judged = PlannedSpec(data=spec)
    if not judged.is_valid():
        for name, errors in judged.errors.items():
            found.setdefault(name, problem_from({name: errors}).message)
    return found


def again(container: Container, private: bool) -> dict[str, Any]:
    """The fields that would launch this container again. Command and environment only for who may see them."""
    asked = {name: text_of(name, value) for name, value in asked_for(container, private).items()}
    return asked | {"gpus": container.gpu_uuids, "gpu_count": container.gpu_count}


def of_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that would launch this body."""
    asked = {
        name: value if isinstance(value, str) and name != "command" else text_of(name, value)
        for name, value in spec.items()
    }
    gpus = spec.get("gpus", 1)
    return asked | {"gpus": gpus if isinstance(gpus, list) else [], "gpu_count": 1 if isinstance(gpus, list) else gpus}


def typed(form: QueryDict) -> dict[str, Any]:
    """The fields as they were typed, to show them again beside what is wrong with them."""
    return form.dict() | {"gpus": form.getlist("gpus")}


def command_line(spec: dict[str, Any]) -> str:
    """The same launch as `gpushare run`, ready for a shell."""
    words = ["gpushare", "run"]
    for name, value in spec.items():
        if name not in ("image", "command"):
            words += _words(name, settings.GPUSHARE_FLAG(name), value)
    return shlex.join([*words, spec["image"] or "IMAGE", *spec.get("command", ())])


def text_of(name: str, value: Any) -> str:
    """A field's value as people write it; empty for what asks for nothing."""
    match WRITTEN[name], value:
        case StrictBoolean(default=default), _:
            return "" if value is default else YES if value else NO
        case _, None:
            return ""
        case SizeField(), int():
            return exact_size(value)
        case WordsField(), _:
            return shlex.join(value)
        case HappeningsField(), list():
            return ",".join(value) or NOTHING
        case _, dict():
            return "\n".join(_pairs(value))
        case _, list():
            return "\n".join(value)
    return json.dumps(value).removesuffix(".0") if isinstance(value, int | float) else str(value)


def _words(name: str, flag: str, value: Any) -> list[str]:
    """A field on a command line."""
    match WRITTEN[name], value:
        case StrictBoolean(), _:
            return [flag]
        case serializers.ChoiceField(), _:
            return [f"--{value}"]
        case GpusField(), list():
            return [flag, ",".join(value)]
        case HappeningsField(), _:
            return [flag, value if isinstance(value, str) else text_of(name, value)]
        case _, list():
            return [word for item in value for word in (flag, item)]
        case _, dict():
            return [word for pair in _pairs(value) for word in (flag, pair)]
    return [flag, text_of(name, value)]


def _pairs(variables: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]
