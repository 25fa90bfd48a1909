"""From what attention says at one moment to what was so for a while."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db.models import F

from web.models import Episode
from web.services.attention import Item, Kind, recorded

SETTLES = timedelta(seconds=30)  # what comes back sooner was not gone: a state that flaps is sent once


def look(now: datetime) -> Mapping[str, Item]:
    """Begins and ends episodes by what attention says now, which is returned by key.

    Raises DatabaseError: while nobody knows what is so, nothing begins or is over.
    """
    seen = {item.key: item for item in recorded(now)}
    open_ = Episode.objects.filter(ended_at=None)
    known = {episode.key: episode for episode in open_}
    Episode.objects.bulk_create(
        [_begun(item, now) for key, item in seen.items() if key not in known], ignore_conflicts=True
    )
    back = [each.pk for each in known.values() if each.gone_at is not None and each.key in seen]
    away = {item.node for item in seen.values() if item.kind is Kind.SCHEDULER_AWAY}  # what is so there nobody knows
    gone = [
        each.pk for each in known.values() if each.gone_at is None and each.key not in seen and each.node not in away
    ]
    over = [each.pk for each in known.values() if each.gone_at is not None and each.gone_at <= now - SETTLES]
    if back:
        open_.filter(pk__in=back).update(gone_at=None)
    if gone:
        open_.filter(pk__in=gone).update(gone_at=now)
    if over:
        open_.filter(pk__in=over).exclude(gone_at=None).update(ended_at=F("gone_at"))
    return seen


def _begun(item: Item, now: datetime) -> Episode:
    return Episode(
        key=item.key,
        kind=item.kind.value,
        person=item.person,
        container=item.container.name if item.container else "",
        container_id=str(item.container.pk) if item.container else "",
        gpu=item.gpu.uuid if item.gpu else "",
        node=item.node,
        message=item.message,
        began_at=min(item.since or now, now),
    )
