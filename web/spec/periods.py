"""Points in time and periods that people ask about: one rule for REST, pages and what they download."""

from datetime import UTC, datetime, time

from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from web.errors import invalid

YEARS = range(2000, 3000)  # nothing here is older; a day more or less, and any zone, still make a time of it


def point(text: str) -> datetime:
    """An ISO time, or a date: its midnight UTC. A time without a zone is UTC. Raises ValueError in words."""
    try:
        found = parse_datetime(text) if "T" in text or " " in text.strip() else None
        date = parse_date(text) if found is None else None
    except ValueError:  # looks right, but there is no such day or hour
        found = date = None
    if date is not None:
        found = datetime.combine(date, time(), UTC)
    if found is None:
        raise ValueError("This has to be a date, such as 2026-11-20, or a time in ISO form.")
    _require_year(found)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def local(text: str) -> datetime:
    """As `point`, but a time without a zone, and a date's midnight, are of the zone in which pages show times."""
    found = point(text)
    zoned = parse_datetime(text) if "T" in text or " " in text.strip() else None
    return found if zoned and zoned.tzinfo else found.replace(tzinfo=timezone.get_current_timezone())


def second(text: str) -> datetime:
    """Seconds since the epoch, as scripts give them. Raises ValueError in words."""
    try:
        found = datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError("This has to be a time in seconds since 1970.") from None
    _require_year(found)
    return found


def past(start: datetime, end: datetime) -> tuple[datetime, datetime]:
    """The part of [start, end) that has happened: nobody has held anything in the future. Problem if there is none."""
    end = min(end, timezone.now())
    if start >= end:
        begins, ends = (f"{at:%Y-%m-%d %H:%M}" for at in (start, end))
        raise invalid(f"The range is empty: it begins at {begins} and ends at {ends}.", "from")
    return start, end


def _require_year(found: datetime) -> None:
    if found.year not in YEARS:
        raise ValueError(f"The year has to be from {YEARS.start} to {YEARS.stop - 1}.")
