import contextlib
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError, connections

from appliance.running.ground import described
from appliance.running.parts import Stopped
from appliance.running.serve import Appliance
from scheduler import notify
from web.models import Gpu, Node


def _ground() -> str:
    """What it runs on, as its scheduler has just written."""
    try:
        node = Node.objects.get(name=settings.GPUSHARE_NODE)
        gpus = Gpu.objects.filter(node=node, present=True).order_by("index").values("name", "capacity", "simulated")
        return described(list(gpus), node.engine)
    except (DatabaseError, Node.DoesNotExist):
        return ""  # it is up; the pages say the rest
    finally:
        connections.close_all()  # none outlives a fork: a part that dies is started again


class Command(BaseCommand):
    help = "Runs the whole appliance in the foreground: web side and scheduler, with SQLite."
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
                f"  Ctrl-C stops it; containers keep running and are found at the next start.\n"
                f"{_ground()}"
            )
            self.stdout.flush()
            notify.tell("READY=1")
            appliance.parts.wait()
