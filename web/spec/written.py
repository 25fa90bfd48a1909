"""A field of a launch as people write it, in one text: in the form, and as an option of a volume.

Each is brought into the kind of value that REST takes; whether that value makes sense, the field itself says.
"""

from typing import Any

from web.errors import invalid
from web.spec.fields import (
    EnvironmentField,
    GpusField,
    ItemsField,
    StrictBoolean,
    StrictInteger,
    StrictNumber,
    WordsField,
    words_of,
)
from web.spec.planned import AfterField, PlannedSpec

YES, NO = "yes", "no"
WRITTEN: dict[str, Any] = dict(PlannedSpec().fields.items())
_SAID = {YES: True, "true": True, NO: False, "false": False}


def read(name: str, text: str) -> Any:
    """The value of a field by this name. Raises Problem."""
    match WRITTEN[name]:
        case StrictBoolean():
            return _yes_or_no(text, name)
        case StrictInteger():
            return number(int, text, name)
        case StrictNumber():
            return number(float, text, name)
        case GpusField():
            return int(text) if text.strip().isdecimal() else text.replace(",", " ").split()
        case WordsField():
            return _split(text, name)
        case ItemsField():
            return [line.strip() for line in _lines(text)]
        case AfterField():
            return text.replace(",", " ").split()
        case EnvironmentField():
            return dict(_pair(line, name) for line in _lines(text))
    return text.strip()


def _yes_or_no(text: str, field: str) -> bool:
    if (said := _SAID.get(text.strip().lower())) is None:
        raise invalid("This has to be yes or no.", field)
    return said


def number(kind: type[int] | type[float], text: str, field: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise invalid(f"This has to be {'a whole number' if kind is int else 'a number'}.", field) from None


def _split(text: str, field: str) -> list[str]:
    try:
        return words_of(text)
    except ValueError:
        raise invalid("A quotation mark in the command is not closed.", field) from None


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _pair(line: str, field: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise invalid(f'"{line[:60]}" is not NAME=value.', field)
    return name.strip(), value
