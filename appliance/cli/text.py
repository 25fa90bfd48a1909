"""Figures into words: sizes, spans of time, tables. And words into figures: dates and durations."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from operator import itemgetter
from typing import Any

Columns = Mapping[str, str | Callable[[Any], object]]  # of `listed`, by their heads
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def size(count: float | None) -> str:
    """Bytes as people read them, and as the pages write them: 1.5 GiB, 512 MiB, 0 bytes. Nothing known is a dash."""
    if count is None:
        return "-"
    unit = "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            break
        count, unit = count / 1024, larger
    number = str(Decimal(count).quantize(Decimal("0.01"), ROUND_HALF_UP))
    return f"{number.rstrip('0').rstrip('.')} {unit}"


def span(seconds: float) -> str:
    """Seconds as the two largest units that say something: 8 s, 3 min 20 s, 2 h 5 min, 4 d 1 h."""
    rest = max(0, int(seconds))
    words: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or (unit == "s" and not words):
            words.append(f"{count} {unit}")
        elif words:
            break
    return " ".join(words[:2])


def ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def moment(text: str) -> datetime:
    """A time as REST gives it."""
    return datetime.fromisoformat(text)


def clock(text: str, now: datetime) -> str:
    """A time in this terminal's zone; the date only if it is not today's."""
    local = moment(text).astimezone()
    return local.strftime("%H:%M:%S" if local.date() == now.astimezone().date() else "%Y-%m-%d %H:%M:%S")


def age(text: str | None, now: datetime) -> str:
    return "-" if text is None else span((now - moment(text)).total_seconds())


def seconds(text: str) -> float:
    """A duration: 90, 90s, 15m, 2h, 1d, or several together as 1h30m. Raises ValueError."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(r"(\d+(\.\d+)?[smhdw])+", text):
        raise ValueError(f"{text!r} is not a duration: write 90s, 15m, 2h or 1h30m")
    return sum(float(count) * SECONDS[unit] for count, unit in re.findall(r"([\d.]+)([smhdw])", text))


def day_or_time(text: str, now: datetime) -> str:
    """A point in time for a report, in ISO format: a date, a date with a time, or how long ago (7d). ValueError."""
    ago = _as(lambda: now - timedelta(seconds=seconds(text)))
    when = ago or _as(lambda: datetime.fromisoformat(text).astimezone(UTC))  # without a zone: in this terminal's
    if when is None:
        raise ValueError(f"{text!r} is not a time: write 2026-11-01, 2026-11-01T08:00 or 7d (ago)")
    return when.astimezone(UTC).isoformat(timespec="seconds")


def _as(reading: Callable[[], datetime]) -> datetime | None:
    """None if it cannot be read so, or lies beyond all time."""
    try:
        return reading()
    except (ValueError, OverflowError):
        return None


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; a head that begins with `>` is a column of figures, set right."""
    right = [head.startswith(">") for head in heads]
    lines = [[head.lstrip(">") for head in heads], *[[printable(cell) for cell in row] for row in rows]]
    widths = [max(width(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(padded(*each) for each in zip(line, widths, right, strict=True)).rstrip() for line in lines
    )


def listed(found: Iterable[Any], columns: Columns) -> str:
    """A table of what REST lists: a column is a field of each, or what a function says of it. Nothing is a dash."""
    cells = [itemgetter(of) if isinstance(of, str) else of for of in columns.values()]
    values = [[cell(each) for cell in cells] for each in found]
    return table(list(columns), [["-" if value in (None, "") else str(value) for value in row] for row in values])


def time_of(name: str, now: datetime) -> Callable[[Any], str]:
    """For `listed`: a field that is a time."""
    return lambda each: clock(each[name], now) if each[name] else ""


def width(text: str) -> int:
    """In cells of a terminal: a wide character (East Asian, emoji) takes two, one that combines with another none."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def wrapped(text: str, cells: int) -> list[str]:
    """In lines of so many cells, between words; a word that is wider than a line is cut."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else ""
        if lines and width(longer) <= cells:
            lines[-1] = longer
        else:
            lines.append(cut(word, cells))
    return lines


def cut(text: str, cells: int) -> str:
    """As much as fits; an ellipsis says that there is more."""
    if width(text) <= cells:
        return text
    kept, room = "", cells - 1
    for char in text:
        room -= _cells(char)
        if room < 0:
            break
        kept += char
    return f"{kept}…" if cells > 0 else ""


def padded(text: str, cells: int, to_right: bool = False) -> str:
    rest = " " * (cells - width(text))
    return rest + text if to_right else text + rest


def printable(text: str) -> str:
    """Names and reasons come from other people: no control character of theirs reaches this terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def harmless(text: str) -> str:
    """The same for several lines of ours."""
    return "\n".join(printable(line) for line in text.split("\n"))
