"""What a web process does beside answering: it looks, and it sends. In threads, each with a connection of its own.

    with Notifier().running():
        …

Every web process has one. One of them looks (`watching.holds`); all of them send, each what it has claimed. A receiver
has one thread at a time, so that one who is slow keeps nobody else waiting while there are threads.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import uuid4

from django.db import DatabaseError, connections
from django.utils import timezone

from web.notifying import outbox, sending, watching

log = logging.getLogger(__name__)

TURN = 1.0  # seconds between two looks at what is due
LOOK = 5.0  # and at what there is to tell
TIDY = 600.0
AT_ONCE = 4  # receivers
STOPS_WITHIN = 2.0


class Notifier:
    def __init__(self) -> None:
        self.me = uuid4()
        self._stop = threading.Event()
        self._busy: set[int | None] = set()
        self._looked = self._tidied = float("-inf")
        self._fails = False

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run, name="notify", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(STOPS_WITHIN)

    def run(self) -> None:
        """Until it is stopped. A database that is away is waited for."""
        try:
            while not self._stop.wait(TURN):
                self._turn()
            watching.give_back(self.me)
        except DatabaseError:
            pass  # the lease runs out by itself
        finally:
            connections.close_all()

    def _turn(self) -> None:
        try:
            self._look(time.monotonic(), timezone.now())
            free = AT_ONCE - len(self._busy)
            for destination in list(outbox.destinations(timezone.now()) - self._busy)[:free]:
                self._begin(destination)
            self._fails = False
        except Exception as error:
            if not self._fails:  # once, and not once a second
                log.warning("no notifications can be sent just now: %s", error, exc_info=not _is_away(error))
            self._fails = True
            connections.close_all()

    def _begin(self, destination: int | None) -> None:
        self._busy.add(destination)
        try:
            # A daemon: whoever is slow to take a message does not hold up the end of the process.
            threading.Thread(target=self._work, args=[destination], name="notify", daemon=True).start()
        except BaseException:  # the host lets no thread be started: the next turn tries again
            self._busy.discard(destination)
            raise

    def _look(self, clock: float, now: datetime) -> None:
        if clock - self._looked < LOOK:
            return
        self._looked = clock
        if watching.holds(self.me, now):
            watching.look(now)
            if clock - self._tidied >= TIDY:
                self._tidied = clock
                watching.tidy(now)

    def _work(self, destination: int | None) -> None:
        try:
            while not self._stop.is_set() and send_next(destination, timezone.now()):
                pass
        except Exception as error:
            log.warning("a message was not sent: %s", error, exc_info=not _is_away(error))
        finally:
            connections.close_all()
            self._busy.discard(destination)


def send_next(destination: int | None, now: datetime) -> bool:
    """Sends the message that is due first, and writes down what became of it. False if none is due."""
    row = outbox.claim_next(destination, now)
    if row is None:
        return False
    begun = time.monotonic()
    try:
        sending.send(row, now)
    except sending.NotSent as problem:
        outbox.failed(row, _later(now, begun), str(problem), unreachable=problem.unreachable)
    else:
        outbox.sent(row, _later(now, begun))
    return True


def _later(now: datetime, begun: float) -> datetime:
    return now + timedelta(seconds=time.monotonic() - begun)


def _is_away(error: Exception) -> bool:
    return isinstance(error, DatabaseError)
