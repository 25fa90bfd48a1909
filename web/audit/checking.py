"""What the last verification of the chain found, kept so that people are told of it."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils import timezone

from web.models import ChainCheck

KEPT = 20  # of the faults' sentences


def note(sound: int, faults: Sequence[str]) -> None:
    """`sound`: how many seals hold."""
    now, before = timezone.now(), last()
    since = (before.broken_since if before and before.broken_since else now) if faults else None
    fields = {"at": now, "sound": sound, "how_many_faults": len(faults), "faults": list(faults[:KEPT])}
    ChainCheck.objects.update_or_create(id=1, defaults={**fields, "broken_since": since})


def last() -> ChainCheck | None:
    """None before the first."""
    return ChainCheck.objects.filter(id=1).first()
