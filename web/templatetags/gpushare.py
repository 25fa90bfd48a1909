"""Filters for templates."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from django import template

register = template.Library()

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_ONES, _TENTHS = Decimal("1"), Decimal("0.1")


@register.filter
def size(count: int | None) -> str:
    """1610612736 → "1.5 GiB": rounded as static/gpushare/parts/format.js does, so that a live row does not flicker."""
    if not count:
        return "0"
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    last = _ONES if unit < 2 or value >= 100 else _TENTHS
    rounded = Decimal(value).quantize(last, ROUND_HALF_UP)  # as toFixed does: 1.25 is 1.3, and not 1.2
    return str(rounded).removesuffix(".0") + f" {_UNITS[unit]}"


@register.filter
def get(values: Mapping[str, Any], name: str) -> Any:
    """values[name], or nothing."""
    return values.get(name, "")


@register.filter
def duration(seconds: float | None) -> str:
    """75 → "1 min 15 s", as static/gpushare/parts/format.js has it."""
    whole = max(0, int(seconds or 0))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole // 60 % 60} min"
    return f"{whole // 86400} d {whole // 3600 % 24} h"


@register.filter
def percent(part: float) -> float:
    return 100 * part
