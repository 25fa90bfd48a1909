"""manage.py verify_audit: recomputes the audit log's hash chain; exit code 1 if anything was changed or is missing."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from web import audit


class Command(BaseCommand):
    help = "Recomputes the audit log's hash chain and tells of any change or gap."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--known",
            metavar="NUMBER:HASH",
            default="",
            help="A seal noted at an earlier run, which must still be there.",
        )

    def handle(self, *args: Any, known: str, **options: Any) -> None:
        sound, faults = audit.verify(_seal(known))
        for fault in faults:
            self.stderr.write(fault)
        if faults:
            raise CommandError(f"The audit log was tampered with or is damaged: {len(faults)} faults.")
        number, last = audit.head()
        self.stdout.write(f"The audit log is whole: {sound} seals hold. The last: {number}:{last}")


def _seal(text: str) -> tuple[int, str] | None:
    number, _, noted = text.partition(":")
    if not text:
        return None
    if not number.isdecimal() or not noted:
        raise CommandError("--known takes the number and the hash that an earlier run printed: NUMBER:HASH.")
    return int(number), noted
