"""manage.py verify_audit: recomputes the audit log's hash chain; exit code 1 if anything was changed or is missing."""

from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from web import audit
from web.audit import anchor, verified


class Command(BaseCommand):
    help = "Recomputes the audit log's hash chain and reports any change or gap."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--known",
            metavar="NUMBER:HASH",
            default="",
            help="A seal noted at an earlier run, which must still be there.",
        )
        parser.add_argument(
            "--accept",
            action="store_true",
            help="Take the chain's end as it is, where the anchor is gone, damaged or names another seal. Recorded.",
        )

    def handle(self, *args: Any, known: str, accept: bool, **options: Any) -> None:
        if accept and settings.GPUSHARE_AUDIT_KEY:  # a node that joined may neither verify the log nor record this
            anchor.accept()
            self.stdout.write(
                f"{anchor.path()} names the log's end as it is now. The web side's host verifies the log."
            )
            return
        if accept:
            self._accept(known)
        sound, faults = audit.verify(_seal(known), *_anchored())
        with suppress(DatabaseError):  # full or read-only: what was found can be shown even so
            verified.keep(sound, faults)
        for fault in faults:
            self.stderr.write(fault)
        if faults:
            raise CommandError(f"The audit log was tampered with or is damaged: {len(faults)} faults.")
        if not (anchor.read() or (0,))[0]:
            self.stderr.write(f"{anchor.path()} names no seal yet: an end that was cut off would not be found.")
        number, last = audit.head()
        self.stdout.write(f"The audit log is whole: {sound} seals hold. The last: {number}:{last}")

    def _accept(self, known: str) -> None:
        """Raises CommandError if something else is wrong: that is not accepted with it."""
        if faults := audit.verify(_seal(known))[1]:
            raise CommandError(f"Nothing is accepted: without the anchor, too, {len(faults)} faults. {faults[0]}")
        try:
            noted = anchor.read()
            before = f"seal {noted[0]}" if noted else "none"
        except ValueError as error:
            before = str(error)
        audit.record("manage.py verify_audit", anchor.ACCEPTED, before=before[:300])
        anchor.accept()
        self.stderr.write(f"The end of the audit log is accepted as it is. Before: {before}")


def _anchored() -> list[tuple[int, str]]:
    try:
        return [noted] if (noted := anchor.read()) else []
    except (OSError, ValueError) as error:
        with suppress(DatabaseError):
            verified.keep(0, [str(error)])
        raise CommandError(str(error)) from None


def _seal(text: str) -> tuple[int, str] | None:
    number, _, noted = text.partition(":")
    if not text:
        return None
    if not number.isdecimal() or not noted:
        raise CommandError("--known takes the number and the hash that an earlier run printed: NUMBER:HASH.")
    return int(number), noted
