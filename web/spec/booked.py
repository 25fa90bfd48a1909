"""What may be asked for ahead of time: notices and windows of maintenance."""

from __future__ import annotations

import re
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rest_framework import serializers

from web.errors import invalid
from web.models.booked import Announcement
from web.spec.fields import StrictSerializer, StrictText, TimeField

ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")
_NONE: dict[str, Any] = {"required": False, "allow_null": True, "default": None}


class AnnouncementSpec(StrictSerializer):
    """A notice: for all, or of one `node` or one `gpu` (UUID). With `begins_at` and `ends_at` it is a window of
    maintenance; `then` says what becomes of containers when it begins. `ends_at` alone: until then it is shown."""

    message = StrictText(max_length=500)
    node = StrictText(required=False, allow_blank=True, default="", max_length=255)
    gpu = StrictText(required=False, allow_blank=True, default="", max_length=64)
    begins_at = TimeField(**_NONE)
    ends_at = TimeField(**_NONE)
    then = serializers.ChoiceField(Announcement.Then.choices, required=False, default=Announcement.Then.STAY)

    def validate_message(self, value: str) -> str:
        if not value.isprintable() or not value.strip():
            raise serializers.ValidationError("A notice is one line of printable text.")
        return value.strip()


def zone_of(name: str) -> ZoneInfo:
    """The time zone of this name. Raises Problem."""
    try:
        if ZONE.fullmatch(name):
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise invalid("There is no such time zone. Write it as Europe/Berlin.", "zone")
