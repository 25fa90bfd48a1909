"""What may be asked for ahead of time: notices, windows of maintenance, reservations."""

import re
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rest_framework import serializers

from web.errors import invalid
from web.models.booked import Announcement, Reservation
from web.models.series import GRID, MOST_TIMES, PERIODS
from web.spec import quotas
from web.spec.fields import GpusField, SizeField, StrictInteger, StrictSerializer, StrictText, TimeField
from web.spec.periods import YEARS

ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")
LOCAL = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
LONGEST = 31 * 24 * 60  # minutes of one reservation
_NONE: dict[str, Any] = {"required": False, "allow_null": True, "default": None}
_TEXT: dict[str, Any] = {"required": False, "allow_blank": True, "default": ""}


def _one_line(value: str) -> str:
    if not value.isprintable():
        raise serializers.ValidationError("This is one line of printable text.")
    return value.strip()


class AnnouncementSpec(StrictSerializer):
    """A notice: for all, or of one `node` or one `gpu` (UUID). With `begins_at` and `ends_at` it is a window of
    maintenance; `then` says what becomes of containers when it begins. `ends_at` alone: until then it is shown."""

    message = StrictText(max_length=500, trim_whitespace=True)
    node = StrictText(max_length=255, **_TEXT)
    gpu = StrictText(max_length=64, **_TEXT)
    begins_at = TimeField(**_NONE)
    ends_at = TimeField(**_NONE)
    then = serializers.ChoiceField(Announcement.Then.choices, default=Announcement.Then.STAY)

    def validate_message(self, value: str) -> str:
        return _one_line(value)


class ReservationSpec(StrictSerializer):
    """GPU memory for `user` (empty: yourself) or the members of `group`: `gpu_memory` on each of `gpus`, null: all of
    them. `starts` is a local time in `zone`; `repeat` and `times` make a series of it."""

    user = StrictText(max_length=150, **_TEXT)
    group = StrictText(max_length=150, **_TEXT)
    gpu_memory = SizeField(smallest=quotas.LEAST, **_NONE)
    gpus = GpusField(default=1)
    node = StrictText(max_length=255, **_TEXT)
    starts = StrictText(max_length=32, help_text=f"Local, without an offset, on the grid of {GRID} minutes.")
    zone = StrictText(max_length=64, default="UTC")
    minutes = StrictInteger(min_value=GRID, max_value=LONGEST)
    repeat = serializers.ChoiceField(
        Reservation.Repeat.choices, default=Reservation.Repeat.ONCE,
        error_messages={"invalid_choice": "A series is daily or weekly."},
    )  # fmt: skip
    times = StrictInteger(min_value=1, max_value=MOST_TIMES, default=1)
    if_short = serializers.ChoiceField(Reservation.Short.choices, default=Reservation.Short.SHORT)
    note = StrictText(max_length=200, **_TEXT)

    def validate_starts(self, value: str) -> str:
        try:
            found = datetime.fromisoformat(value) if LOCAL.fullmatch(value) else None
        except ValueError:  # looks right, and there is no such day
            found = None
        if found is None or found.year not in YEARS:
            raise serializers.ValidationError(
                "This has to be a local time such as 2026-12-04T08:00; `zone` says where."
            )
        if found.minute % GRID:
            raise serializers.ValidationError(f"Reservations begin on the grid of {GRID} minutes: at :00 or :30.")
        return f"{found:%Y-%m-%dT%H:%M}"

    def validate_zone(self, value: str) -> str:
        if _zone(value) is None:
            raise serializers.ValidationError(NO_ZONE)
        return value

    def validate_minutes(self, value: int) -> int:
        if value % GRID:
            raise serializers.ValidationError(f"This has to be a multiple of {GRID} minutes.")
        return value

    def validate_note(self, value: str) -> str:
        return _one_line(value)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        repeat, times = attrs["repeat"], attrs["times"]
        if (repeat == Reservation.Repeat.ONCE) != (times == 1):
            raise serializers.ValidationError({"times": "A series has two times or more."})
        if times > 1 and timedelta(minutes=attrs["minutes"]) > PERIODS[repeat]:
            raise serializers.ValidationError({"minutes": "Each of a series ends before the next one begins."})
        return attrs


NO_ZONE = "There is no such time zone. Write it as Europe/Berlin."


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name) if ZONE.fullmatch(name) else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def zone_of(name: str) -> ZoneInfo:
    """The time zone of this name. Raises Problem."""
    if (found := _zone(name)) is None:
        raise invalid(NO_ZONE, "zone")
    return found
