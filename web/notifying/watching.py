"""The look at what there is to tell, by one process at a time."""

from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q

from web.models import Watch
from web.notifying import announced, episodes, happenings, monthly, outbox
from web.people import memberships

LEASE = timedelta(seconds=20)  # after which another process takes over from one that says nothing any more


def holds(me: UUID, now: datetime) -> bool:
    """Whether the watch is ours. Two that believe so do no harm: what they make is kept apart by constraints."""
    watch, _ = Watch.objects.get_or_create(pk=1)
    if watch.holder == me and watch.until is not None and watch.until - now > LEASE / 2:
        return True
    free = Q(holder=me) | Q(until=None) | Q(until__lt=now)
    return bool(Watch.objects.filter(free, pk=1).update(holder=me, until=now + LEASE))


def give_back(me: UUID) -> None:
    Watch.objects.filter(pk=1, holder=me).update(until=None)


def look(now: datetime) -> None:
    """What to send follows from what is so now, and what happened since the last look."""
    while happenings.is_there_news() and happenings.look(now) == happenings.AT_ONCE:
        pass
    announced.look(now)
    outbox.make(now, episodes.look(now))  # without rules, too: the page Incidents shows what there was


def tidy(now: datetime) -> None:
    outbox.tidy(now)
    happenings.tidy(now)
    memberships.look(now)
    monthly.look(now)
