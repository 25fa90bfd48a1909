"""`manage.py rundoor`: the door for ssh as a service of its own, beside the web side."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from appliance.running.listening import listen


class Command(BaseCommand):
    help = "Lets people into their containers by ssh, at GPUSHARE_SSH."

    def handle(self, *args: Any, **options: Any) -> None:
        from web.door.server import serve

        if not settings.GPUSHARE_SSH:
            raise CommandError("GPUSHARE_SSH is not set. It says where to listen: 2222, or 0.0.0.0:2222.")
        listener = listen(*settings.GPUSHARE_SSH)
        self.stdout.write("gpushare lets people in by ssh at {}:{}".format(*listener.getsockname()[:2]))
        self.stdout.flush()
        serve(listener)
