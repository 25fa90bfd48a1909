"""manage.py verify_audit: recomputes the audit log's hash chain; exit code 1 if anything was changed or is missing."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from web import audit


class Command(BaseCommand):
    help = "Recomputes the audit log's hash chain and tells of any change or gap."

    def handle(self, *args: Any, **options: Any) -> None:
        sound, faults = audit.verify()
        for fault in faults:
            self.stderr.write(fault)
        if faults:
            raise CommandError(f"The audit log was tampered with or is damaged: {len(faults)} faults.")
        self.stdout.write(f"The audit log is whole: {sound} seals hold.")
