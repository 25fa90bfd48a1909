"""What happened to somebody's container, sent to its owner: once, whichever process looks and wherever it is killed.

Allocation events are numbered in the order in which they were committed (an append holds the chain's row), so the last
number that was looked at, written in one transaction with what follows from it, says all.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Max

from web.models import AllocationEvent, Container, Delivery, GaveWay, Happening, Notice, Watch, Wish, large
from web.notifying import outbox
from web.templatetags.gpushare import duration

AT_ONCE = 1000  # events
MAILS_AN_HOUR = 60  # to one person; what is more is in the browser alone
KEPT_EACH = 1000  # notices of one person: whose containers end all the time loses older ones, and nobody else does
SAME = timedelta(minutes=1)  # a container's cards tell the same thing one after the other

Kind = AllocationEvent.Kind
KINDS = (
    Kind.NOTIFIED,
    Kind.RESUMED,
    Kind.ENDED,
    Kind.SWAPPED_OUT,
    Kind.SWAPPED_IN,
    Kind.NOT_RESTORED,
    Kind.CARD_DRAINED,
)
GAVE_WAY = tuple(why.opening for why in GaveWay)


def look(now: datetime) -> int:
    """Makes notices of what happened since the last look. How many events that were, up to AT_ONCE."""
    with transaction.atomic():
        watch, _ = Watch.objects.select_for_update().get_or_create(pk=1)
        newest = AllocationEvent.objects.aggregate(last=Max("pk"))["last"] or 0
        if watch.event is None:  # the first start: the past is nobody's news
            Watch.objects.filter(pk=1).update(event=newest)
        if watch.event is None or newest <= watch.event:
            return 0
        events = list(AllocationEvent.objects.filter(pk__gt=watch.event).order_by("pk")[:AT_ONCE])
        wanted = [event.pk for event in events if event.kind in KINDS]
        found = AllocationEvent.objects.filter(pk__in=wanted).order_by("pk").select_related("container__owner__wish")
        for event in found.defer(*large("container__")):
            _tell(event, now)
        Watch.objects.filter(pk=1).update(event=events[-1].pk)
        return len(events)


def is_there_news() -> bool:
    """Without a transaction, which would keep others from writing."""
    watch = Watch.objects.filter(pk=1).first()
    newest = AllocationEvent.objects.aggregate(last=Max("pk"))["last"] or 0
    return watch is None or watch.event is None or newest > watch.event


def wish_of(container: Container) -> Wish:
    return getattr(container.owner, "wish", None) or Wish(user=container.owner)


def _tell(event: AllocationEvent, now: datetime) -> None:
    container = event.container
    wish = wish_of(container)
    chosen = wish.happenings if container.notify is None else container.notify
    for kind, message in _happened(event, container, wish):
        mail = wish.mail and bool(container.owner.email and settings.EMAIL_HOST)
        if kind not in chosen or not (mail or wish.browser):
            continue
        same = Notice.objects.filter(container=container, kind=kind, at__gt=event.at - SAME, message=message)
        if same.exists():
            continue
        notice = Notice.objects.create(
            event=event, user=container.owner, container=container, kind=kind, message=message[:700], at=event.at,
            browser=wish.browser,
        )  # fmt: skip
        lately = Delivery.objects.filter(notice__user=container.owner, made_at__gt=now - timedelta(hours=1))
        if mail and lately.count() < MAILS_AN_HOUR:
            outbox.make_mail(notice, now)


def _happened(event: AllocationEvent, container: Container, wish: Wish) -> Iterator[tuple[Happening, str]]:
    name = f'"{container.name}"'
    match event.kind:
        case Kind.ENDED if container.kill_requested_at is not None:
            yield Happening.KILLED, f"{name} was killed. {event.detail}".strip()
        case Kind.ENDED:
            why = f": {event.detail}" if event.detail else "."
            yield Happening.ENDED, f"{name} has ended{why}"
        case Kind.NOTIFIED:
            yield Happening.PLANNED, f"{name}: {event.detail}"
        case Kind.NOT_RESTORED:  # to its owner it is as good as the end
            yield Happening.ENDED, f"{name} cannot continue. {event.detail}"
        case Kind.RESUMED if event.waited >= 60 * wish.goes_on_minutes:
            yield Happening.GOES_ON, f"{name} continues: it got its memory after {duration(event.waited)}."
        case Kind.SWAPPED_OUT if event.detail.startswith(GAVE_WAY):  # further on, a person's note may stand
            yield Happening.GIVES_WAY, f"{name} gives way. {event.detail}"
        case Kind.CARD_DRAINED:
            yield Happening.CARD, f"The GPU of {name} takes no new containers. {event.detail}"
        case Kind.SWAPPED_IN:
            yield Happening.GOES_ON, f"{name} continues: its memory is back on the GPU."


def tidy(now: datetime) -> None:
    Notice.objects.filter(at__lt=now - outbox.KEPT).delete()
    many = Notice.objects.order_by().values("user").annotate(number=Count("pk")).filter(number__gt=KEPT_EACH)
    for person in many.values_list("user", flat=True):
        newest = Notice.objects.filter(user=person).order_by("-pk").values_list("pk", flat=True)
        Notice.objects.filter(pk__in=list(newest[KEPT_EACH : KEPT_EACH + 1000])).delete()
