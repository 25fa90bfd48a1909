"""Reading settings from the environment: a value that makes no sense is a sentence, not a traceback.

A variable that is empty is as good as none, whatever it is for.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from web.sizes import parse_size

HIGHEST_PORT = 65535


def text(name: str, default: str = "") -> str:
    return os.environ.get(name) or default


def words(name: str, default: str = "") -> list[str]:
    """Separated by spaces or commas."""
    return [word for word in text(name, default).replace(",", " ").split() if word]


def switch(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    value = environ.get(name) or "0"
    if value not in ("0", "1"):
        raise ImproperlyConfigured(f"{name} is {value!r}. It may be 0 or 1.")
    return value == "1"


def one_of(name: str, *choices: str) -> str:
    """One of these; the first is the default."""
    value = text(name, choices[0])
    if value not in choices:
        raise ImproperlyConfigured(f"{name} is {value!r}. It may be {', '.join(choices[:-1])} or {choices[-1]}.")
    return value


def number(name: str, default: float, least: float = 0, most: float = float("inf")) -> float:
    given = text(name, str(default))
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not least <= value <= most or value == float("inf"):
        range_ = f"at least {least:g}" if most == float("inf") else f"{least:g} to {most:g}"
        raise ImproperlyConfigured(f"{name} is {given!r}, which is not a number of {range_}.")
    return value


def whole(name: str, default: int, most: int | None = None) -> int:
    """At least 0."""
    given = text(name, str(default))
    if not given.isdecimal() or (most is not None and int(given) > most):
        range_ = "at least 0" if most is None else f"0 to {most}"
        raise ImproperlyConfigured(f"{name} is {given!r}, which is not a whole number of {range_}.")
    return int(given)


def hexadecimal(name: str, digits: int) -> str:
    """So many hexadecimal digits; empty where there are none."""
    given = text(name).lower()
    if given and (len(given) != digits or not set(given) <= set("0123456789abcdef")):
        raise ImproperlyConfigured(f"{name} is not {digits} hexadecimal digits: `gpushare-node join` has written it.")
    return given


def size(name: str, default: str) -> int:
    """Bytes."""
    try:
        return parse_size(text(name, default))
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True)
class PerGpu:
    """A number for each GPU: of those not named, `default`. `named`: by index or UUID."""

    default: float
    named: Mapping[str, float]

    def of(self, index: int, uuid: str) -> float:
        return self.named.get(uuid, self.named.get(str(index), self.default))


def per_gpu(name: str, default: float) -> PerGpu:
    """One number for all, and others for GPUs by index or UUID: "85 0=80 GPU-5f3a…=90"."""
    found: dict[str, float] = {}
    for word in words(name):
        gpu, _, given = word.rpartition("=")
        try:
            found[gpu] = float(given)
        except ValueError:
            found[gpu] = -1
        if not 0 <= found[gpu] < float("inf") or (not gpu and "=" in word):
            raise ImproperlyConfigured(
                f'{name} is {text(name)!r}: "{word}" is neither a number of at least 0 nor such as 0=80, for one GPU.'
            )
    return PerGpu(found.pop("", default), found)


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
    given = text(name, default)
    lowest, _, highest = given.partition("-")
    highest = highest or lowest
    if not (lowest.isdecimal() and highest.isdecimal() and 0 < int(lowest) <= int(highest) <= HIGHEST_PORT):
        raise ImproperlyConfigured(f'{name} is {given!r}. It is a range of ports such as "20000-29999".')
    return int(lowest), int(highest)
