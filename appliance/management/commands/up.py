from __future__ import annotations

import contextlib
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from appliance.running.parts import Stopped
from appliance.running.serve import Appliance
from scheduler import notify


class Command(BaseCommand):
    help = "Runs the whole appliance in the foreground: a web process and a scheduler over SQLite."
    # A tenth of the start. They look at the code, and `make check` asks them; the environment is read in settings.py.
    requires_system_checks = ()

    @property
    def on_terminal(self) -> bool:
        return self.stdout.isatty()

    def handle(self, *args: Any, **options: Any) -> None:
        # A link belongs on a terminal: what else is written to may be kept, as a service's journal is.
        with contextlib.suppress(Stopped), Appliance(settings.HOST, settings.PORT, link=self.on_terminal) as appliance:
            link = f"  open {appliance.address.link}\n  (it signs you in as 'admin', once, within ten minutes), or\n"
            self.stdout.write(
                f"gpushare is up: {appliance.address.url}\n{link if appliance.address.key else ''}"
                f"  sign in as 'admin' with the token in {settings.GPUSHARE_HOME / 'admin-token'} as the password\n"
                f"  Ctrl-C stops it; containers go on running and are found again at the next start."
            )
            self.stdout.flush()
            notify.tell("READY=1")
            appliance.parts.wait()
