"""The log of all processes: one line an event, with the node, and the container and its owner where it is about one.

    log.warning("container %s could not be ended: %s", live, error)

What is put into a line may know whom it is about: its method `log_fields` returns those of `FIELDS` (lines.py) that it
knows. Programs then find them. lines.py makes text or JSON of it, journal.py gives it to systemd's journal, sums.py
keeps it short, secrets.py clean; choose.py says which. Levels: error and warning want a person, info is what happens
anyway, debug is for who looks for a fault.
"""


class ById:
    """A container of which nothing but its id is at hand."""

    def __init__(self, id_: str) -> None:
        self._id = id_

    def __str__(self) -> str:
        return self._id

    def log_fields(self) -> dict[str, str]:
        return {"container_id": self._id}
