"""Which episode is sent to whom: as the rules say, and not while a silence covers it."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from web.models import Episode, Receiver, Rule, Severity, Silence
from web.services.attention import Kind

SEVERITIES = {
    Kind.DATABASE_AWAY: Severity.CRITICAL,
    Kind.SCHEDULER_AWAY: Severity.CRITICAL,
    Kind.ENGINE_AWAY: Severity.CRITICAL,
    Kind.GPU_GONE: Severity.CRITICAL,
    Kind.AUDIT_BROKEN: Severity.CRITICAL,
    Kind.XID: Severity.CRITICAL,
    Kind.ECC: Severity.CRITICAL,
    Kind.NOT_RESTORED: Severity.CRITICAL,
    Kind.WAITING: Severity.INFO,
    Kind.SWAPPED_WAITING: Severity.INFO,
    Kind.HOLDING: Severity.INFO,
    Kind.ABOVE_SHARE: Severity.INFO,
    Kind.NO_TURNS: Severity.INFO,
    Kind.ANNOUNCED: Severity.INFO,
}  # and a warning for all else
REFRESH = timedelta(hours=6)  # Alertmanager forgets what is not sent again in time (words.LASTS)
_ORDER = list(Severity)


def severity_of(kind: str) -> Severity:
    return SEVERITIES.get(Kind(kind), Severity.WARNING) if kind in set(Kind) else Severity.WARNING


def is_about(rule: Rule, episode: Episode) -> bool:
    grave = _ORDER.index(severity_of(episode.kind)) >= _ORDER.index(Severity(rule.severity))
    return grave and (not rule.kinds or episode.kind in rule.kinds)


def wanting(rules: Iterable[Rule], episode: Episode, now: datetime) -> list[Rule]:
    """Those that are about it and for which it has lasted long enough."""
    lasted = (now - episode.began_at) / timedelta(minutes=1)
    return [rule for rule in rules if is_about(rule, episode) and lasted >= rule.minutes]


def repeats_after(receiver: Receiver, rules: Sequence[Rule]) -> timedelta | None:
    """The shortest of theirs; None: it is sent once."""
    times = [timedelta(minutes=rule.repeat_minutes) for rule in rules if rule.repeat_minutes is not None]
    if receiver.kind == Receiver.Kind.ALERTMANAGER:
        times.append(REFRESH)
    return min(times, default=None)


def is_silenced(episode: Episode, silences: Iterable[Silence]) -> bool:
    """`silences`: those that are not over."""
    fields = ("kind", "person", "container")
    return any(
        all(getattr(silence, field) in ("", getattr(episode, field)) for field in fields) for silence in silences
    )
