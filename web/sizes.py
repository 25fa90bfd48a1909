"""Sizes as people write them: bytes inside; "2GiB", "512m", "1.5g" outside. Units count in 1024s, as Docker's do."""

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([kmgt]?)(i?b)?\s*", re.IGNORECASE | re.ASCII)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_HUNDREDTHS = Decimal("0.01")
LARGEST = 2**63 - 1


def parse_size(text: str | int, least: int = 0) -> int:
    """Bytes, at least so many. Raises ValueError with a sentence for people."""
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise ValueError('A size is a number of bytes, or text such as "2GiB" or "512m".')
    if isinstance(text, int):
        size = text
    else:
        match = _SIZE.fullmatch(text)
        if match is None or (match[3] and match[3][0] in "iI" and not match[2]):
            shown = "".join(each if each.isprintable() else "\ufffd" for each in text[:40])  # an image may say anything
            raise ValueError(f'"{shown}" is not a size. Write bytes, or for example "2GiB" or "512m".')
        exact = Decimal(match[1]) * 1024 ** _POWER[match[2].lower()]
        if exact != int(exact):
            raise ValueError(_not_whole(text, match[1], _POWER[match[2].lower()]))
        size = int(exact)
    if size < 0:
        raise ValueError("A size cannot be negative.")
    if size > LARGEST:
        raise ValueError("That is more bytes than any machine has.")
    if size < least:
        raise ValueError(_too_small(str(text), size, least))
    return size


def _not_whole(text: str, number: str, power: int) -> str:
    """With what is nearest to it: who writes 5.1GiB means neither 5 nor 6."""
    less = max(power - 1, 0)
    nearest = f"{Decimal(number) * 1024 ** (power - less):.0f}" + _UNITS[less].replace("bytes", "")
    return f'"{text[:40]}" is not a whole number of bytes: "{nearest}" is.'


def _too_small(text: str, size: int, least: int) -> str:
    """Who writes "4" rarely means four bytes."""
    message = f"This has to be at least {format_size(least)}."
    if not size or not text.strip().isdecimal():
        return message
    unit = "GiB" if size < 256 else "MiB"
    return f'{message} {size} without a unit is {size} bytes: did you mean "{size}{unit}"?'


def format_size(size: int) -> str:
    """The shortest text with at most two decimals: 2 GiB, 1.5 MiB, 512 bytes.

    The one that people read everywhere: `size` in static/gpushare/parts/format.js, scheduler/core/admission.py and
    appliance/cli/text.py, which cannot call this, writes the same. Halves are rounded up, as JavaScript's toFixed does:
    1.125 is 1.13.
    """
    value, unit = float(size), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    number = str(Decimal(value).quantize(_HUNDREDTHS, ROUND_HALF_UP))
    return f"{number.rstrip('0').rstrip('.')} {_UNITS[unit]}"


def whole(value: float) -> int:
    """Halves up, as JavaScript's Math.round and the templates' floatformat have it."""
    return int(Decimal(value).quantize(Decimal(1), ROUND_HALF_UP))


def percents(parts: Sequence[float]) -> list[int]:
    """What each is of their sum, in whole percent that add up to 100: what rounding down leaves over goes, one each, to
    those that lost the most by it. All 0 if there is no sum.
    """
    exact = [100 * part / total for part in parts] if (total := sum(parts)) else [0.0 for _ in parts]
    found = [int(each) for each in exact]
    lost = sorted(range(len(parts)), key=lambda place: found[place] - exact[place])
    for place in lost[: whole(sum(exact)) - sum(found)]:
        found[place] += 1
    return found


def tenths(value: float) -> str:
    """With one decimal, halves up, as JavaScript's toFixed(1) has it."""
    return str(Decimal(value).quantize(Decimal("0.1"), ROUND_HALF_UP))


def exact_size(size: int) -> str:
    """For a field that is filled in: as people write it, if that says it exactly; else in bytes."""
    short = format_size(size).replace(" ", "").replace("bytes", "")
    try:
        return short if parse_size(short) == size else str(size)
    except ValueError:  # 716.8MiB is no whole number of bytes
        return str(size)
