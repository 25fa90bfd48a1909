"""Docker's event stream, followed by a thread: reconnecting, with an overlap, for as long as it takes.

An event is only a hint to look at a container: the stream is asked to begin a little before it broke off, so it may
repeat itself, and nothing rests on its order or completeness.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import docker
import docker.errors
import requests.exceptions

from scheduler.engines.docker.client import release, wake

log = logging.getLogger(__name__)

OVERLAP = 5.0  # seconds
CHANGES = ["start", "die", "pause", "unpause", "destroy"]  # all that can make a container be other than it was
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0  # seconds between attempts to connect


class EventFollower:
    """Calls `happened(engine_id, change)` for each of CHANGES in a container with `label`, from its own thread."""

    def __init__(self, api: docker.APIClient, label: str, happened: Callable[[str, str], None]) -> None:
        self._api, self._label, self._happened = api, label, happened
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
        since = time.time()
        wait = FIRST_WAIT
        while not self._closing.is_set():
            try:
                self._stream = self._api.events(
                    since=int(since - OVERLAP),
                    filters={"type": "container", "event": CHANGES, "label": self._label},
                    decode=True,
                )
                if self._closing.is_set():  # `close` came before there was a stream to close
                    return
                for event in self._stream:
                    since, wait = float(event["time"]), FIRST_WAIT
                    self._happened(str(event["Actor"]["ID"]), str(event["Action"]))
            except (docker.errors.DockerException, requests.exceptions.RequestException, OSError, ValueError) as error:
                log.debug("Docker's events broke off: %s", error)
            finally:
                if self._stream is not None:
                    release(self._stream)
            # It ended: Docker was stopped. How long it stays away is not known; what happens meanwhile is asked for.
            self._closing.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT)
