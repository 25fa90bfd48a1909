"""Last month's report by mail: who used how much, by person and by group, with the figures as CSV beside it."""

import logging
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.core.mail import EmailMessage
from django.db.models import Q

from web.history import reports
from web.models import Receiver

log = logging.getLogger(__name__)


def look(now: datetime) -> None:
    """Sends it to each receiver that wants it and does not have it: once a month, later if the server was away."""
    month = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    start = (month - timedelta(days=1)).replace(day=1)
    wanting = Receiver.objects.filter(
        ~Q(reported=f"{start:%Y-%m}"), monthly=True, enabled=True, kind=Receiver.Kind.MAIL
    )
    for receiver in wanting if settings.EMAIL_HOST else ():
        before = receiver.reported
        if not wanting.filter(pk=receiver.pk).update(reported=f"{start:%Y-%m}"):
            continue  # another process does it
        try:
            letter(start, month, receiver.addresses).send()
        except (OSError, ValueError) as error:  # tried again at the next look
            Receiver.objects.filter(pk=receiver.pk).update(reported=before)
            log.warning("the monthly report was not sent to %s: %s", receiver.name, error)


def letter(start: datetime, end: datetime, addresses: list[str]) -> EmailMessage:
    """The report of [start, end)."""
    people = reports.report(start, end, "user")
    parts = [_table("Person", people), _table("Group", reports.report(start, end, "group"))]
    made = EmailMessage(f"gpushare: GPU use in {start:%B %Y}", "\n\n".join(parts), None, addresses)
    made.attach(f"gpushare-user-{start:%Y-%m}.csv", "".join(reports.csv_lines(people)), "text/csv")
    return made


def _table(title: str, found: reports.Report) -> str:
    lines = [f"{title:<32} {'GiB hours':>12} {'share':>6} {'GPU hours':>10} {'containers':>10}"]
    for row, share in found.shares():
        computed = "-" if row["gpu_hours"] is None else f"{row['gpu_hours']:.1f}"
        held = f"{row['vram_gib_hours']:>12.1f} {share:>4} %"
        lines.append(f"{row['group'][:32]:<32} {held} {computed:>10} {row['containers']:>10}")
    return "\n".join(lines if found.rows else [*lines, "No GPU was used."])
