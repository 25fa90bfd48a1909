"""What happens to containers, one line of the log each, once it is in the database.

In the database's thread: whoever reads the log slowly delays no decision. What is allocated and freed all the time is
left to the audit log; what a warning has logged already is not logged again.
"""

import logging
from collections.abc import Iterable

from django.db import Error

from web.models import AllocationEvent, Container
from web.sizes import format_size

log = logging.getLogger(__name__)

Kind = AllocationEvent.Kind


# Kind → the line, and which field of the event is put into it.
SAID: dict[str, tuple[str, str]] = {
    Kind.STARTED: ("has started, with a quota of %s", "bytes"),
    Kind.SUSPENDED: ("waits for %s of GPU memory", "bytes"),
    Kind.RESUMED: ("goes on after %.3g s", "waited"),
    Kind.REJECTED: ("was refused %s of GPU memory", "bytes"),
    Kind.PAUSED: ("is paused", ""),
    Kind.UNPAUSED: ("goes on", ""),
    Kind.SWAPPED_OUT: ("is in host memory, %s", "bytes"),
    Kind.SWAPPED_IN: ("is back on its card", ""),
    Kind.QUOTA: ("has another quota", ""),
    Kind.WARNED: ("is warned", ""),
    Kind.IDLE: ("is idle", ""),
    Kind.KILLED: ("is killed", ""),
    Kind.ENDED: ("has ended", ""),
}


class Named:
    """A container as it is logged: its name, for programs its id and its owner, too."""

    def __init__(self, id_: str, name: str, owner: str) -> None:
        self._id, self._name, self._owner = id_, name, owner

    def __str__(self) -> str:
        return self._name

    def log_fields(self) -> dict[str, str]:
        return {"container": self._name, "container_id": self._id, "owner": self._owner}


_named: dict[str, Named] = {}  # of those that live, as far as they were logged


def tell(events: Iterable[AllocationEvent]) -> None:
    """Raises nothing: the events are written."""
    logged = [event for event in events if event.kind in SAID]
    if not logged or not log.isEnabledFor(logging.INFO):
        return
    missing = {event.container_id for event in logged if str(event.container_id) not in _named}
    try:
        found = Container.objects.filter(pk__in=missing).order_by().values_list("pk", "name", "owner__username")
        _named.update({str(pk): Named(str(pk), name, owner) for pk, name, owner in found})
    except Error as error:
        log.debug("who %d containers are is not known now: %s", len(missing), error)
    for event in logged:
        id_ = str(event.container_id)
        words, field = SAID[event.kind]
        figures = {"bytes": (format_size(event.bytes),), "waited": (event.waited,)}.get(field, ())
        named = _named.get(id_) or Named(id_, id_, "")
        log.info(f"container %s {words}%s", named, *figures, f": {event.detail}" if event.detail else "")
        if event.kind == Kind.ENDED:
            _named.pop(id_, None)
