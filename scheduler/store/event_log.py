"""What happens to containers, one line of the log each, once it is in the database.

In the database's thread: whoever reads the log slowly delays no decision. What is allocated and freed all the time is
left to the audit log; what a warning has told where it was found is not told again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from django.db import Error

from web.models import AllocationEvent, Container
from web.sizes import format_size

log = logging.getLogger(__name__)

Kind = AllocationEvent.Kind


def _size(event: AllocationEvent) -> tuple[object, ...]:
    return (format_size(event.bytes),)


def _waited(event: AllocationEvent) -> tuple[object, ...]:
    return (event.waited,)


def _nothing(event: AllocationEvent) -> tuple[object, ...]:
    return ()


SAID: dict[str, tuple[str, Callable[[AllocationEvent], tuple[object, ...]]]] = {
    Kind.STARTED: ("has started, with a quota of %s", _size),
    Kind.SUSPENDED: ("waits for %s of GPU memory", _size),
    Kind.RESUMED: ("goes on after %.3g s", _waited),
    Kind.REJECTED: ("was refused %s of GPU memory", _size),
    Kind.PAUSED: ("is paused", _nothing),
    Kind.UNPAUSED: ("goes on", _nothing),
    Kind.SWAPPED_OUT: ("is in host memory, %s", _size),
    Kind.SWAPPED_IN: ("is back on its card", _nothing),
    Kind.QUOTA: ("has another quota", _nothing),
    Kind.WARNED: ("is warned", _nothing),
    Kind.IDLE: ("is idle", _nothing),
    Kind.KILLED: ("is killed", _nothing),
    Kind.ENDED: ("has ended", _nothing),
}


class Named:
    """A container as it is told of: its name, for programs its id and its owner, too."""

    def __init__(self, id_: str, name: str, owner: str) -> None:
        self._id, self._name, self._owner = id_, name, owner

    def __str__(self) -> str:
        return self._name

    def log_fields(self) -> dict[str, str]:
        return {"container": self._name, "container_id": self._id, "owner": self._owner}


_named: dict[str, Named] = {}  # of those that live, as far as they were told of


def tell(events: Iterable[AllocationEvent]) -> None:
    """Raises nothing: the events are written."""
    told = [event for event in events if event.kind in SAID]
    if not told or not log.isEnabledFor(logging.INFO):
        return
    missing = {event.container_id for event in told if str(event.container_id) not in _named}
    try:
        found = Container.objects.filter(pk__in=missing).order_by().values_list("pk", "name", "owner__username")
        _named.update({str(pk): Named(str(pk), name, owner) for pk, name, owner in found})
    except Error as error:
        log.debug("who %d containers are is not known now: %s", len(missing), error)
    for event in told:
        id_ = str(event.container_id)
        words, figures = SAID[event.kind]
        named = _named.get(id_) or Named(id_, id_, "")
        log.info(f"container %s {words}%s", named, *figures(event), _because(event.detail))
        if event.kind == Kind.ENDED:
            _named.pop(id_, None)


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""
