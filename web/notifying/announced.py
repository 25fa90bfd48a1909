"""Notices for everybody, sent once to each person who wants them; and what is to begin, begun."""

from datetime import datetime

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction

from web.models import Announcement, Happening, Notice, Wish
from web.notifying import outbox
from web.services.booked import announcements, coming


def look(now: datetime) -> None:
    announcements.begin_due(now)
    coming.tell(now)
    for each in Announcement.objects.current(now).filter(notified_at=None):
        with transaction.atomic():
            if Announcement.objects.filter(pk=each.pk, notified_at=None).update(notified_at=now):
                _tell(each, now)


def _tell(announcement: Announcement, now: datetime) -> None:
    for user in get_user_model().objects.filter(is_active=True).select_related("wish"):
        wish = getattr(user, "wish", None) or Wish(user=user)
        mail = wish.mail and bool(user.email and settings.EMAIL_HOST)
        if Happening.PLANNED in wish.happenings and (mail or wish.browser):
            notice = Notice.objects.create(
                user=user, kind=Happening.PLANNED, message=announcement.said[:700], at=now, browser=wish.browser
            )
            if mail:
                outbox.make_mail(notice, now)
