"""What was found when the log was verified last, kept in the database; and verifying it beside a web process' work."""

import logging
import threading
import time
from datetime import datetime, timedelta

from django.db import connections, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from web.audit import anchor
from web.audit.verifying import verify
from web.models import Verification

log = logging.getLogger(__name__)

LONGEST = 600.0  # seconds of one attempt from a page; `manage.py verify_audit` takes as long as it takes
_ROW = 1


class TooLong(Exception):
    """It has taken longer than it may."""


def last() -> tuple[datetime, bool, str] | None:
    """When it was verified last, whether it was whole, and that in a sentence. None: never."""
    row = Verification.objects.filter(pk=_ROW).exclude(at=None).first()
    return (row.at, row.ok, row.sentence) if row is not None and row.at is not None else None


def broken_since() -> datetime | None:
    """When the faults that were there at the last time were first found; None: there were none."""
    return Verification.objects.filter(pk=_ROW).values_list("broken_since", flat=True).first()


def under_way() -> datetime | None:
    """Since when it is being verified now."""
    since = Verification.objects.filter(pk=_ROW).values_list("started_at", flat=True).first()
    return since if since is not None and not _given_up(since) else None


def trouble() -> str:
    """Why the last attempt did not finish; empty if it did."""
    row = Verification.objects.filter(pk=_ROW).first()
    if row is None:
        return ""
    if row.started_at is not None and _given_up(row.started_at):
        return "The last verification did not finish: its process ended. Try again."
    return row.trouble


def keep(sound: int, faults: list[str], remark: str = "", begun: datetime | None = None) -> None:
    """Notes what a run has found: how many seals hold, and every fault. `begun`: of one that `start` began; it is over
    then, and no other is."""
    if faults:
        others = f" ({len(faults)} faults in all)" if len(faults) > 1 else ""
        sentence = f"The audit log was tampered with or is damaged. {faults[0]}{others}"
    else:
        hold = "1 seal holds" if sound == 1 else f"{sound} seals hold"
        sentence = f"The audit log is whole: {hold}.{remark}"
    now = timezone.now()
    since = (broken_since() or now) if faults else None
    found = {
        "at": now,
        "ok": not faults,
        "sentence": sentence,
        "broken_since": since,
        "trouble": "",
    }
    with transaction.atomic():
        Verification.objects.update_or_create(pk=_ROW, defaults=found)
        _of(begun).update(started_at=None)


def check(within: float, begun: datetime | None = None) -> None:
    """Verifies it now and keeps what was found, as `keep`. Raises TooLong after so many seconds."""
    until = time.monotonic() + within

    def each() -> None:
        if time.monotonic() > until:
            raise TooLong

    noted, wrong, remark = None, [], ""
    try:
        noted = anchor.read()
    except ValueError as error:
        wrong = [str(error)]
    except OSError:  # the scheduler's alone
        remark = f" Without {anchor.path()}, which only the scheduler's user may read: `manage.py verify_audit` has it."
    sound, faults = verify(noted, each=each)
    keep(sound, faults + wrong, remark, begun)


def start() -> bool:
    """Begins in a thread of its own. False if one is under way, in whichever process."""
    now = timezone.now()
    Verification.objects.get_or_create(pk=_ROW)
    free = Q(started_at=None) | Q(started_at__lt=now - timedelta(seconds=2 * LONGEST))
    if not Verification.objects.filter(free, pk=_ROW).update(started_at=now):
        return False
    try:
        threading.Thread(target=_run, args=[now], name="verify-audit", daemon=True).start()
    except RuntimeError as error:  # the host lets no thread be started
        _gave_up(now, f"It could not start: {error}. Try again.")
    return True


def _run(begun: datetime) -> None:
    try:
        check(LONGEST, begun)
    except TooLong:
        _gave_up(
            begun,
            f"It did not end within {LONGEST / 60:.0f} minutes. On the host, `manage.py verify_audit` has no limit.",
        )
    except Exception as error:
        log.exception("The audit log could not be verified")
        _gave_up(begun, f"It could not be verified: {error}")
    finally:
        connections.close_all()


def _gave_up(begun: datetime, why: str) -> None:
    _of(begun).update(started_at=None, trouble=why)


def _of(begun: datetime | None) -> QuerySet[Verification]:
    """The row, while that run is the one under way: another may have begun since, in another process."""
    return Verification.objects.filter(pk=_ROW, started_at=begun).exclude(started_at=None)


def _given_up(since: datetime) -> bool:
    return timezone.now() - since > timedelta(seconds=2 * LONGEST)
