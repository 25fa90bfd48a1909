"""A person's reservations and all maintenance as iCalendar (RFC 5545), by a key that opens nothing else.

Each time of a series is an event of its own, in UTC: whoever shows it needs no rules and no zones of ours.
"""

import secrets
from collections.abc import Iterator
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from web import audit
from web.errors import not_found
from web.models import Announcement, CalendarKey
from web.people.tokens import digest
from web.services.booked.reservations import theirs
from web.sizes import format_size

PREFIX = "gpc_"
LINE = 75  # bytes of one, at most


def new_key(user: User) -> str:
    """Another key; the one before is good no more. It is not kept, and cannot be shown again."""
    key = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        CalendarKey.objects.update_or_create(user=user, defaults={"digest": digest(key)})
        audit.record(user.get_username(), "calendar-key-made")
    return key


def calendar_of(key: str) -> str:
    """What this key opens. Raises Problem: there is no such key, or its person's account is off."""
    found = CalendarKey.objects.select_related("user").filter(digest=digest(key), user__is_active=True).first()
    if found is None:
        raise not_found("There is no such calendar. Its key may have been replaced.")
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//gpushare//calendar//EN",
        *_events(found.user),
        "END:VCALENDAR",
    ]
    return "".join(f"{_folded(line)}\r\n" for line in lines)


def _events(user: User) -> Iterator[str]:
    now = timezone.now()
    for each in theirs(user, now):
        size = "all memory" if each.gpu_memory is None else format_size(each.gpu_memory)
        where = ", ".join(f"GPU {card.gpu.index} of {card.gpu.node.name}" for card in each.cards.all())
        for begins, ends in each.spans:
            uid = f"reservation-{each.pk}-{begins:%Y%m%dT%H%M}"
            yield from _event(uid, begins, ends, f"{size} reserved for {each.holder}", where, each.note, each.made_at)
    for window in Announcement.objects.current(now).exclude(begins_at=None):
        if window.begins_at and window.ends_at:
            uid, said = f"maintenance-{window.pk}", f"Maintenance: {window.message}"
            yield from _event(uid, window.begins_at, window.ends_at, said, window.about, "", window.made_at)


def _event(
    uid: str, begins: datetime, ends: datetime, said: str, where: str, note: str, made: datetime
) -> Iterator[str]:
    yield "BEGIN:VEVENT"
    yield f"UID:{uid}@gpushare"
    for name, at in (("DTSTAMP", made), ("DTSTART", begins), ("DTEND", ends)):
        yield f"{name}:{at:%Y%m%dT%H%M%SZ}"
    for name, text in (("SUMMARY", said), ("LOCATION", where), ("DESCRIPTION", note)):
        if text:
            yield f"{name}:{_escaped(text)}"
    yield "END:VEVENT"


def _escaped(text: str) -> str:
    for sign in ("\\", ";", ","):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\r", "").replace("\n", "\\n")


def _folded(line: str) -> str:
    """In pieces of so many bytes, no sign cut in two; each but the first begins with a space."""
    pieces, piece = [], ""
    for sign in line:
        if len((piece + sign).encode()) > LINE - 1:
            pieces.append(piece)
            piece = ""
        piece += sign
    return "\r\n ".join([*pieces, piece])
