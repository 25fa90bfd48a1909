"""The launch form: from its fields to the typed body that services.launch takes, and back from an earlier launch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from django.http import QueryDict

from web.errors import invalid
from web.models import Container, Shortage
from web.sizes import format_size, parse_size

NUMBERS = {"priority": int, "max_wait_seconds": float, "ttl_seconds": float, "cpus": float}
SIZES = ("gpu_memory", "memory")
LISTS = ("volumes", "ports")  # one a line
SWITCHES = ("guaranteed", "remove_when_done")


def spec_of(form: QueryDict) -> dict[str, Any]:
    """The body of a launch. What is empty is left out; sizes and names are judged by the one who launches."""
    spec: dict[str, Any] = {"image": form.get("image", "").strip()}
    if name := form.get("name", ""):
        spec["name"] = name
    if command := form.get("command", "").strip():
        try:
            spec["command"] = shlex.split(command)
        except ValueError:
            raise invalid("A quotation mark in the command is not closed.", "command") from None
    spec |= {field: text for field in SIZES if (text := form.get(field, "").strip())}
    spec |= {field: _number(field, text) for field in NUMBERS if (text := form.get(field, "").strip())}
    spec |= {field: lines for field in LISTS if (lines := _lines(form.get(field, "")))}
    spec |= {field: True for field in SWITCHES if form.get(field)}
    if form.get("on_shortage") == Shortage.FAIL:
        spec["on_shortage"] = Shortage.FAIL.value
    if environment := _environment(form.get("env", "")):
        spec["env"] = environment
    if gpus := form.getlist("gpus"):
        spec["gpus"] = gpus
    elif (count := form.get("gpu_count", "").strip()) not in ("", "1"):
        spec["gpus"] = _number("gpus", count, int)
    return spec


def again(container: Container, with_secrets: bool) -> dict[str, Any]:
    """The fields that would launch this container again. Command and environment only for who may see them."""
    return {
        "image": container.image,
        "command": shlex.join(container.command) if with_secrets else "",
        "gpu_memory": _size(container.gpu_memory),
        "gpus": container.gpu_uuids,
        "gpu_count": container.gpu_count,
        "priority": container.priority or "",
        "on_shortage": container.on_shortage,
        "max_wait_seconds": _plain(container.max_wait_seconds),
        "ttl_seconds": _plain(container.ttl_seconds),
        "guaranteed": container.guaranteed,
        "remove_when_done": container.remove_when_done,
        "memory": _size(container.memory),
        "cpus": _plain(container.cpus),
        "volumes": "\n".join(container.volumes),
        "ports": "\n".join(container.ports),
        "env": _env_text(container.environment) if with_secrets else "",
    }


def typed(form: QueryDict) -> dict[str, Any]:
    """The fields as they were typed, to show them again beside what is wrong with them."""
    return form.dict() | {"gpus": form.getlist("gpus")}


def _number(field: str, text: str, kind: Any = None) -> int | float:
    kind = kind or NUMBERS[field]
    try:
        number: int | float = kind(text)
    except ValueError:
        whole = "a whole number" if kind is int else "a number"
        raise invalid(f"This has to be {whole}.", field) from None
    return number


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _environment(text: str) -> dict[str, str]:
    environment = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise invalid(f'"{line[:60]}" is not NAME=value.', "env")
        environment[name.strip()] = value
    return environment


def _env_text(environment: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in environment.items())


def _plain(number: float | None) -> str:
    return "" if number is None else f"{number:g}"


def _size(size: int | None) -> str:
    """As people write it, if that says it exactly; else in bytes."""
    if size is None:
        return ""
    short = format_size(size).replace(" ", "").replace("bytes", "")
    return short if parse_size(short) == size else str(size)
