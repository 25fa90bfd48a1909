"""Limits of allowances, from words and into words."""

from typing import Any

from appliance.cli.errors import Problem
from appliance.cli.text import size
from appliance.flags import flag

NONE = "none"  # no limit; a list that allows nothing is written as an empty text


def limit_words(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "gpu_memory":
        return size(value)
    if isinstance(value, list):
        return ", ".join(value) or "none at all"
    return f"{value:g}" if isinstance(value, float) else str(value)


def number(field: str, text: str, kind: type[int] | type[float]) -> Any:
    """A limit that is a number; a percentage may end with its sign. Raises Problem."""
    try:
        return None if text == NONE else kind(text.removesuffix("%"))
    except ValueError:
        message = f"{flag(field)}: {text} is not a number"
        raise Problem(message, code="usage", hint=f"give a number, or {NONE}") from None


def texts(words: list[str]) -> list[str] | None:
    """A list's items, given one by one or with commas. `none`: no limit."""
    if words == [NONE]:
        return None
    return [part for word in words for part in word.split(",") if part]
