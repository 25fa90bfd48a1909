"""A process that looks and sends, over the database of a test, and is killed at a given point.

    python -m tests.support.sender DATABASE POINT TIME

POINT: "looked" (episodes are written), "made" (deliveries are), "claimed" (nothing is sent yet), "sent" (it is not
written down yet), or "never". TIME: of its clock, in ISO form.
"""

import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def start(point: str, now: datetime) -> subprocess.Popen[bytes]:
    """One of it, over the default database as it is now."""
    from django.conf import settings

    name = str(settings.DATABASES["default"]["NAME"])
    arguments = [sys.executable, "-m", "tests.support.sender", name, point, now.isoformat()]
    environment = os.environ | {"DATABASE_URL": f"sqlite:///{name}", "DJANGO_SETTINGS_MODULE": "appliance.settings"}
    return subprocess.Popen(arguments, cwd=ROOT, env=environment)


def dies_after(function: Any) -> Any:
    def wrapped(*arguments: Any, **named: Any) -> None:
        function(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    return wrapped


def main(point: str, now: datetime) -> None:
    import django

    django.setup()
    from web.notifying import episodes, loop, outbox, sending, watching

    places = {"looked": (episodes, "look"), "made": (outbox, "make"), "sent": (sending, "send")}
    if point in places:
        module, name = places[point]
        setattr(module, name, dies_after(getattr(module, name)))
    elif point == "claimed":
        sending.send = dies_after(lambda row, now: None)
    watching.look(now)
    for destination in outbox.destinations(now):
        while loop.send_next(destination, now):
            pass


if __name__ == "__main__":
    main(sys.argv[2], datetime.fromisoformat(sys.argv[3]))
