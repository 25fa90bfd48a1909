"""The log of all processes: one line an event, with the node, and the container and its owner where it is about one.

    log.warning("container %s could not be ended: %s", tenant, error)

What is put into a line may know whom it is about (`InLog`); those fields are then found by programs. lines.py makes
text or JSON of it, journal.py gives it to systemd's journal, sums.py keeps it short, secrets.py clean; choose.py says
which. Levels: error and warning want a person, info is what happens anyway, debug is for who looks for a fault.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class InLog(Protocol):
    def log_fields(self) -> dict[str, str]:
        """Of `FIELDS` (lines.py), those that are known."""


class ById:
    """A container of which nothing but its id is at hand."""

    def __init__(self, id_: str) -> None:
        self._id = id_

    def __str__(self) -> str:
        return self._id

    def log_fields(self) -> dict[str, str]:
        return {"container_id": self._id}
