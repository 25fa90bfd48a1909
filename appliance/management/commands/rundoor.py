"""`manage.py rundoor`: the door for ssh and for applications as a service of its own, beside the web side."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from appliance.running.door import let_in, listeners


class Command(BaseCommand):
    help = "Serves ssh (at GPUSHARE_SSH) and applications in the browser (at GPUSHARE_APPS_LISTEN)."

    def handle(self, *args: Any, **options: Any) -> None:
        ssh, apps = listeners()
        if not (ssh or apps):
            raise CommandError(
                "Neither GPUSHARE_SSH nor GPUSHARE_APPS is set. GPUSHARE_SSH is the port for ssh (2222, "
                "or 0.0.0.0:2222), GPUSHARE_APPS the domain of applications (*.apps.lab.example)."
            )
        for what, listener in (("by ssh", ssh), ("to applications", apps)):
            if listener:
                self.stdout.write("gpushare lets people in {} at {}:{}".format(what, *listener.getsockname()[:2]))
        self.stdout.flush()
        let_in(ssh, apps)
