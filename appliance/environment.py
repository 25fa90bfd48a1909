"""Reading settings from the environment: a value that makes no sense is a sentence, not a traceback."""

from __future__ import annotations

import ipaddress
import os

from django.core.exceptions import ImproperlyConfigured

from web.sizes import parse_size


def words(name: str, default: str = "") -> list[str]:
    """Separated by spaces or commas."""
    return [word for word in os.environ.get(name, default).replace(",", " ").split() if word]


def one_of(name: str, *choices: str) -> str:
    """One of these; the first is the default."""
    value = os.environ.get(name) or choices[0]
    if value not in choices:
        raise ImproperlyConfigured(f"{name} is {value!r}. It may be {', '.join(choices[:-1])} or {choices[-1]}.")
    return value


def number(name: str, default: float) -> float:
    """At least 0."""
    text = os.environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ImproperlyConfigured(f"{name} is {text!r}, which is not a number of at least 0.")
    return value


def whole(name: str, default: int) -> int:
    """At least 0."""
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise ImproperlyConfigured(f"{name} is {text!r}, which is not a whole number of at least 0.")
    return int(text)


def size(name: str, default: str) -> int:
    """Bytes."""
    try:
        return parse_size(os.environ.get(name) or default)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}: {error}") from None


def networks(name: str) -> list[str]:
    """Addresses and networks, separated by spaces or commas: "127.0.0.1 10.0.0.0/8"."""
    found = words(name)
    for word in found:
        try:
            ipaddress.ip_network(word)
        except ValueError as error:
            raise ImproperlyConfigured(f"{name}: {error}.") from None
    return found


def port_range(name: str, default: str) -> tuple[int, int]:
    """The lowest and the highest: "20000-29999", or one port."""
    text = os.environ.get(name) or default
    lowest, _, highest = text.partition("-")
    highest = highest or lowest
    if not (lowest.isdecimal() and highest.isdecimal() and 0 < int(lowest) <= int(highest) < 65536):
        raise ImproperlyConfigured(f'{name} is {text!r}. It is a range of ports such as "20000-29999".')
    return int(lowest), int(highest)
