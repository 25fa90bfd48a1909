"""The messages that are to be sent: made once, claimed by one, tried for a day, and closed by a conditional update.

Each message is a row, and the constraint `each_message_once` is what keeps two processes from making it twice. A claim
lasts longer than a try may take (`sending.DEADLINE`), so a row that is claimed for longer belonged to a process that
was killed: whether its message arrived nobody knows, and it is sent again, under the same id.

What a receiver refuses is tried again by itself; what cannot reach a receiver holds all of that receiver's messages
back, or a thousand of them would each wait for the same silence. The messages about one thing go in their order.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from web.models import Delivery, Episode, Notice, Receiver, Rule, Silence
from web.notifying import rules
from web.services.attention import Item

DAY = timedelta(days=1)  # so long a message is tried
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=10), timedelta(minutes=10)
CLAIM = timedelta(seconds=60)
WAITING_MOST = 1000  # messages for one receiver; what is still so is sent once there is room
KEPT = timedelta(days=7)  # what is over is shown for so long
KEPT_MOST = 10_000
EPISODES_KEPT = timedelta(days=90)  # for the page Incidents

Phase = Delivery.Phase
Latest = dict[tuple[int, str], Delivery]  # the latest of each episode and phase


def make(now: datetime, seen: Mapping[str, Item]) -> None:
    """What the rules ask for now. `seen`: what attention says, by key."""
    silences = list(Silence.objects.filter(until__gt=now))
    chosen: dict[Receiver, list[Rule]] = defaultdict(list)
    for rule in Rule.objects.filter(enabled=True, receiver__enabled=True).select_related("receiver"):
        chosen[rule.receiver].append(rule)
    if not chosen:
        return
    recent = Episode.objects.filter(Q(ended_at=None) | Q(ended_at__gt=now - DAY))
    episodes = list(recent)
    latest: dict[int, Latest] = defaultdict(dict)
    for row in Delivery.objects.filter(episode__in=recent.order_by().values("pk")).order_by("round"):
        latest[row.receiver_id or 0][row.episode_id or 0, row.phase] = row
    for receiver, asked in chosen.items():
        found = [_next(now, receiver, asked, episode, latest[receiver.pk], silences) for episode in episodes]
        _add(receiver, [message for message in found if message is not None], seen)


def _next(
    now: datetime, receiver: Receiver, asked: list[Rule], episode: Episode, latest: Latest, silences: list[Silence]
) -> Delivery | None:
    """What to send this receiver of this episode next, if anything."""
    fired, resolved = latest.get((episode.pk, Phase.FIRING)), latest.get((episode.pk, Phase.RESOLVED))
    if episode.ended_at is not None:
        wanted = any(rule.resolved and rules.is_about(rule, episode) for rule in asked)
        return _message(now, receiver, episode, Phase.RESOLVED, 0) if fired and wanted and not resolved else None
    wanting = rules.wanting(asked, episode, now)
    if not wanting or episode.gone_at is not None or rules.is_silenced(episode, silences):
        return None
    if fired is None:
        return _message(now, receiver, episode, Phase.FIRING, 0)
    again = rules.repeats_after(receiver, wanting)
    if again is not None and fired.done_at is not None and fired.done_at + again <= now:
        return _message(now, receiver, episode, Phase.FIRING, fired.round + 1)
    return None


def _message(now: datetime, receiver: Receiver, episode: Episode, phase: Phase, round_: int) -> Delivery:
    return Delivery(receiver=receiver, episode=episode, phase=phase, round=round_, made_at=now, due_at=now)


def _add(receiver: Receiver, rows: list[Delivery], seen: Mapping[str, Item]) -> None:
    if not rows:
        return
    room = WAITING_MOST - Delivery.objects.filter(receiver=receiver, done_at=None).count()
    rows = rows[: max(0, room)]
    for row in rows:
        assert row.episode is not None
        item = seen.get(row.episode.key)
        if item is not None and item.message != row.episode.message:  # what is sent is what is so now
            Episode.objects.filter(pk=row.episode.pk).update(message=item.message)
    Delivery.objects.bulk_create(rows, ignore_conflicts=True)


def make_mail(notice: Notice, now: datetime) -> Delivery:
    return Delivery.objects.create(notice=notice, phase=Phase.NOTICE, made_at=now, due_at=now)


def _sendable(now: datetime) -> QuerySet[Delivery]:
    earlier = Delivery.objects.filter(
        receiver=OuterRef("receiver"),
        episode__key=OuterRef("episode__key"),
        done_at=None,
        made_at__lt=OuterRef("made_at"),
    )
    free = Q(claimed_until=None) | Q(claimed_until__lt=now)
    reachable = Q(receiver=None) | Q(receiver__enabled=True) & (
        Q(receiver__retry_at=None) | Q(receiver__retry_at__lte=now)
    )
    return Delivery.objects.filter(free, reachable, ~Exists(earlier), done_at=None, due_at__lte=now)


def destinations(now: datetime) -> set[int | None]:
    """Where something can be sent now: receivers by number, None for people's own mail."""
    if not Delivery.objects.filter(done_at=None, due_at__lte=now).exists():  # a tenth of the question's price
        return set()
    return set(_sendable(now).order_by().values_list("receiver", flat=True).distinct())


def claim_next(destination: int | None, now: datetime) -> Delivery | None:
    """The message that is due first, and ours alone for a while; None if there is none."""
    due = _sendable(now).filter(receiver=destination).order_by("due_at", "made_at")
    for row in due.select_related("receiver", "episode", "notice__user")[:10]:
        free = Delivery.objects.filter(pk=row.pk, done_at=None, claim=row.claim)
        row.claim = uuid4()
        if free.update(claim=row.claim, claimed_until=now + CLAIM, tries=F("tries") + 1, tried_at=now):
            row.tries += 1
            return row
    return None


def sent(row: Delivery, now: datetime) -> bool:
    """Whether it was still ours to close."""
    if row.receiver is not None and (row.receiver.failures or row.receiver.retry_at):
        Receiver.objects.filter(pk=row.receiver.pk).update(failures=0, retry_at=None)
    return _release(row.pk, row.claim, done_at=now, outcome=Delivery.Outcome.SENT, error="")


def failed(row: Delivery, now: datetime, error: str, *, unreachable: bool) -> None:
    if unreachable and row.receiver is not None:
        failures = row.receiver.failures + 1
        Receiver.objects.filter(pk=row.receiver.pk).update(failures=failures, retry_at=now + wait_after(failures))
    over = now - row.made_at >= DAY
    end = {"done_at": now, "outcome": Delivery.Outcome.GIVEN_UP} if over else {"due_at": now + wait_after(row.tries)}
    _release(row.pk, row.claim, error=error[:500], **end)


def _release(pk: UUID, claim: UUID | None, **fields: object) -> bool:
    mine = Delivery.objects.filter(pk=pk, claim=claim, done_at=None)
    return bool(mine.update(claim=None, claimed_until=None, **fields))


def wait_after(failures: int) -> timedelta:
    return min(FIRST_WAIT * (1 << min(failures - 1, 10)), LONGEST_WAIT)


def tidy(now: datetime) -> None:
    """Gives up what was tried for a day, and forgets what is over for long."""
    free = Q(claimed_until=None) | Q(claimed_until__lt=now)
    old = Delivery.objects.filter(free, done_at=None, made_at__lt=now - DAY)
    old.filter(tries=0).update(error="It could not be tried: the receiver was switched off, or not reached.")
    old.update(done_at=now, outcome=Delivery.Outcome.GIVEN_UP, claim=None, claimed_until=None)
    later = Delivery.objects.filter(
        receiver=OuterRef("receiver"), episode=OuterRef("episode"), phase=Phase.FIRING, round__gt=OuterRef("round")
    )
    # The last row of what goes on says that it was sent: it stays as long as that.
    over = Q(episode=None) | Q(episode__ended_at__isnull=False) | Exists(later)
    done = Delivery.objects.filter(over).exclude(done_at=None)
    done.filter(done_at__lt=now - KEPT).delete()
    surplus = list(done.order_by("-done_at").values_list("pk", flat=True)[KEPT_MOST : KEPT_MOST + 1000])
    Delivery.objects.filter(pk__in=surplus).delete()
    drain = ~Exists(Delivery.objects.filter(episode=OuterRef("pk")))
    Episode.objects.filter(drain, ended_at__lt=now - EPISODES_KEPT).delete()
    Silence.objects.filter(until__lt=now - KEPT).delete()
