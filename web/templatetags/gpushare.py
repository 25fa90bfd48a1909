"""Filters for templates."""

from __future__ import annotations

from django import template

register = template.Library()

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@register.filter
def size(count: int | None) -> str:
    """1610612736 → "1.5 GiB": the same rounding as static/gpushare/format.js, so that a live row does not flicker."""
    value, unit = float(count or 0), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit < 2 or value >= 100 else 1
    return f"{value:.{digits}f}".removesuffix(".0") + f" {_UNITS[unit]}"
