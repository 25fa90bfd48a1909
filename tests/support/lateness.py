"""How late a scheduler's loop is beside webhooks that are down, slow and hang, and how late without any.

Both in turn, several times on one appliance: what else the machine does falls on both alike.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import hooks
from tests.support.appliance import Appliance, http, until

SECRET = "a secret of its own, long enough"
MESSAGES = 3  # to each, at once: more that only try a receiver may not wait
SLOW = 1.5  # seconds until the slow one answers


@dataclass(frozen=True)
class Late:
    """Milliseconds, each: one reading of how much later than asked the loop woke."""

    without: list[float]
    beside: list[float]
    waited: int  # messages that none of them had taken at the end of a span beside them, at the fewest

    @property
    def ratio(self) -> float:
        """Of the medians: 1 is no difference."""
        return statistics.median(self.beside) / statistics.median(self.without)


def beside_hooks(home: Path, turns: int, seconds: float) -> Late:
    """`turns` times so many seconds without and beside them, on an appliance of its own in this folder."""
    note = home.parent / "late"
    appliance = Appliance(home, program=("-m", "benchmarks.lateness", str(note)))
    try:
        spans: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        waited = []
        for _ in range(turns):
            spans[False].append(_span(seconds))
            with _notified(appliance):
                spans[True].append(_span(seconds))
                waited.append(appliance.api("GET", "notifying/deliveries/?open=true")["count"])
        until(lambda: _read(note)[-1][0] > spans[True][-1][1])  # it is written in blocks
    finally:
        appliance.close()
    values = _read(note)
    without, beside = ([ms for at, ms in values if any(a <= at <= b for a, b in spans[way])] for way in (False, True))
    return Late(without, beside, min(waited))


def _span(seconds: float) -> tuple[float, float]:
    begun = time.time()
    time.sleep(seconds)
    return begun, time.time()


@contextlib.contextmanager
def _notified(appliance: Appliance) -> Iterator[None]:
    """While inside, messages wait for three receivers: nobody is there, slow, and never comes to an end."""
    with hooks.listening() as slow, hooks.dripping(0.5) as never:
        slow.delay = SLOW
        made = []
        for name, url in (("down", "http://127.0.0.1:9/"), ("slow", slow.url), ("hangs", never)):
            body = {"name": name, "kind": "webhook", "url": url, "secret": SECRET}
            made.append(appliance.api("POST", "notifying/receivers/", body)["id"])
        for receiver in made * MESSAGES:
            appliance.api("POST", f"notifying/receivers/{receiver}/test/")
        yield
    for receiver in made:
        url = f"{appliance.url}/api/v1/notifying/receivers/{receiver}/"
        http.delete(url, headers={"Authorization": f"Token {appliance.token}"}).raise_for_status()


def _read(note: Path) -> list[tuple[float, float]]:
    lines: list[Any] = note.read_text().splitlines()[:-1] if note.exists() else []
    return [(float(at), float(ms)) for at, ms in map(str.split, lines)] or [(0.0, 0.0)]
