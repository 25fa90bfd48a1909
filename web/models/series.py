"""Times that repeat: local times of days in a zone, as points in time. Pure."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

GRID = 30  # minutes
MOST_TIMES = 200
PERIODS = {"once": timedelta(0), "daily": timedelta(days=1), "weekly": timedelta(days=7)}


def spans(starts: str, zone: str, minutes: int, repeat: str, times: int) -> list[tuple[datetime, datetime]]:
    """Begin and end of each, in UTC.

    `starts` is a local time without a zone. Each of a series begins at that local time of its own day, and lasts as
    many minutes, but no longer than until the next one begins: the day on which clocks go forward has 23 hours. Where
    the change of clocks leaves a time out, it is as much later; of one that comes twice, the first counts.
    """
    first, there = datetime.fromisoformat(starts), ZoneInfo(zone)
    days = [first + number * PERIODS[repeat] for number in range(min(times, MOST_TIMES))]
    begins = [day.replace(tzinfo=there).astimezone(UTC) for day in days]
    ends = [begin + timedelta(minutes=minutes) for begin in begins]
    return [(begin, min(end, after)) for begin, end, after in zip(begins, ends, [*begins[1:], ends[-1]], strict=True)]
