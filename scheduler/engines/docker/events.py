"""Docker's event stream, followed by a thread: reconnecting, with an overlap, for as long as it takes.

An event is only a hint to look at a container: the stream is asked to begin a little before it broke off, so it may
repeat itself, and nothing rests on its order or completeness.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import docker
import docker.errors
import requests.exceptions

from scheduler import clock
from scheduler.engines.docker.client import release, wake

log = logging.getLogger(__name__)

OVERLAP = 5.0  # seconds
CHANGES = ["start", "die", "pause", "unpause", "destroy"]  # all that can make a container be other than it was
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0  # seconds between attempts to connect


Others = Callable[[str, str, Mapping[str, str], float], bool]  # engine id, change, its attributes, seconds


class EventFollower:
    """Calls `happened(engine_id, change)` for each of CHANGES in a container with `label`, from its own thread.

    Of those of others `others` is asked first, where it is given: whether that is reported, too. `broke_off` is when
    the stream last did, in seconds since the epoch: Docker was restarted, or seemed so.
    """

    def __init__(
        self, api: docker.APIClient, label: str, happened: Callable[[str, str], None], others: Others | None = None
    ) -> None:
        self._api, self._label, self._happened, self._others = api, label, happened, others
        self.broke_off = 0.0
        self._stream: docker.types.CancellableStream[Any] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="docker events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._stream is not None:
            wake(self._stream)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        since = clock.wall()
        wait = FIRST_WAIT
        while not self._closing.is_set():
            try:
                mine = {} if self._others else {"label": self._label}
                self._stream = self._api.events(
                    since=int(since - OVERLAP), filters={"type": "container", "event": CHANGES, **mine}, decode=True
                )
                if self._closing.is_set():  # `close` came before there was a stream to close
                    return
                for event in self._stream:
                    since, wait = float(event["time"]), FIRST_WAIT
                    if self._concerns_us(event):
                        self._happened(str(event["Actor"]["ID"]), str(event["Action"]))
            except (docker.errors.DockerException, requests.exceptions.RequestException, OSError, ValueError) as error:
                log.debug("Docker's events broke off: %s", error)
            finally:
                if self._stream is not None:
                    release(self._stream)
            self.broke_off = clock.wall()
            # It ended: Docker was stopped. How long it stays away is not known; what happens meanwhile is asked for.
            self._closing.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _concerns_us(self, event: Mapping[str, Any]) -> bool:
        labels = event["Actor"].get("Attributes") or {}
        name, _, value = self._label.partition("=")
        if self._others is None or labels.get(name) == value:
            return True
        return self._others(*_said(event))


def past(api: docker.APIClient, since: float) -> list[tuple[str, str, Mapping[str, str], float]]:
    """Blocking. What `Others` takes, of all containers, from then until now."""
    call: Any = api.events
    events = call(
        since=f"{since:.6f}", until=f"{clock.wall():.6f}", filters={"type": "container", "event": CHANGES}, decode=True
    )
    try:
        return [_said(event) for event in events]
    finally:
        release(events)


def _said(event: Mapping[str, Any]) -> tuple[str, str, Mapping[str, str], float]:
    labels = event["Actor"].get("Attributes") or {}
    return str(event["Actor"]["ID"]), str(event["Action"]), labels, event["timeNano"] / 1e9
