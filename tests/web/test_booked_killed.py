"""A web process is killed before each line of what it does to reservations and windows: all of it is so, or nothing.

Once with SIGKILL in a process of its own, for each line; then the person tries again, or the next process looks.
"""

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from django.utils import timezone

from tests.support.machine import GIB, make_container
from tests.support.people import make_user
from tests.web.test_reservations import body
from web.errors import Problem
from web.models import Announcement, AuditEntry, Command, Gpu, Reservation, ReservedGpu
from web.people.roles import Role
from web.services.booked import announcements, reservations

IN_MEMORY = settings.DATABASES["default"]["ENGINE"].endswith("sqlite3")
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(IN_MEMORY, reason="a database in memory dies with its process: test_postgres.py runs this"),
]
FOLDER = str(Path(reservations.__file__).parent)
HOUR = timedelta(hours=1)


def lines_of(deed: Callable[[], Any], kill_at: int = 0) -> int:
    """Does it in a process of its own, which dies before a line, by number. How many lines it came by; 0: it died."""
    connections.close_all()
    out, into = os.pipe()
    if (child := os.fork()) == 0:
        count = 0

        def line(frame: Any, event: str, argument: Any) -> Any:
            nonlocal count
            if event == "line":
                count += 1
                if count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return line

        def entered(frame: Any, event: str, argument: Any) -> Any:
            return line if frame.f_code.co_filename.startswith(FOLDER) else None

        try:
            sys.settrace(entered)
            deed()
            sys.settrace(None)
            os.write(into, str(count).encode())
        finally:
            os._exit(0)
    os.close(into)
    os.waitpid(child, 0)
    with os.fdopen(out) as pipe:
        return int(pipe.read() or 0)


def each_line(deed: Callable[[], Any], undo: Callable[[], Any], whole: Callable[[], bool | None]) -> int:
    """`whole`: True if all of it is so, False if nothing is, None otherwise. How many deaths there were."""
    deaths = 0
    while not lines_of(deed, deaths + 1):
        deaths += 1
        was = whole()
        assert was is not None, f"half of it, after death {deaths}"
        if not was:
            deed()  # again
        assert whole() is True
        undo()
        assert whole() is False
    assert whole() is True
    return deaths


def test_a_reservation_is_made_whole_or_not_at_all(ada: User, gpu: Gpu) -> None:
    asked = body(gpu_memory="3GiB")

    def whole() -> bool | None:
        counts = {model.objects.count() for model in (Reservation, ReservedGpu)}
        counts.add(AuditEntry.objects.filter(action="reserve").count() - made)
        return bool(counts.pop()) if len(counts) == 1 else None

    def undo() -> None:
        nonlocal made
        with pytest.raises(Problem):
            reservations.reserve(ada, asked)  # never twice
        made += Reservation.objects.count()
        Reservation.objects.all().delete()

    made = 0
    assert each_line(lambda: reservations.reserve(ada, asked), undo, whole) > 40


def test_a_window_begins_whole_or_not_at_all(ada: User, gpu: Gpu) -> None:
    root = make_user("root", Role.ADMIN)
    for name in ("one", "two"):
        make_container(ada, name, gpu, quota=GIB, node=gpu.node)
    now = timezone.now()
    times = {"begins_at": (now + HOUR).isoformat(), "ends_at": (now + 2 * HOUR).isoformat()}
    announcements.announce(root, {"message": "fans", "gpu": gpu.uuid, "then": "end", **times})

    def whole() -> bool | None:
        begun, orders = Announcement.objects.get().begun_at is not None, Command.objects.count()
        return begun if orders == 3 * begun else None

    def undo() -> None:
        announcements.begin_due(now + HOUR)  # a second look begins nothing
        assert Command.objects.count() == 3
        Command.objects.all().delete()
        Announcement.objects.update(begun_at=None)

    assert each_line(lambda: announcements.begin_due(now + HOUR), undo, whole) > 20


def test_one_is_ended_whole_or_not_at_all(ada: User, gpu: Gpu) -> None:
    made = reservations.reserve(ada, body())
    until, recorded = made.over_at, 0

    def whole() -> bool | None:
        ended = Reservation.objects.get().over_at < until
        return ended if AuditEntry.objects.filter(action="reservation-ended").count() == recorded + ended else None

    def undo() -> None:
        nonlocal recorded
        recorded += 1
        Reservation.objects.update(over_at=until)

    assert each_line(lambda: reservations.end(ada, made.pk), undo, whole) > 10
