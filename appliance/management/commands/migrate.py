"""`manage.py migrate`: Django's own, but not on a host that has joined: the database is the web side's to change."""

from typing import Any

from django.conf import settings
from django.core.management.commands import migrate


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.GPUSHARE_AUDIT_KEY:
            super().handle(*args, **options)
        elif options["verbosity"]:
            self.stdout.write(
                "This host has joined an appliance: the database is upgraded on the host of its web side."
            )
