"""What the turns know of a container: what it may have, and what it was measured to have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """Of one container. `limit`: percent of each of its cards, at most. `across`: its priority counts against other
    people's containers, too."""

    gpus: tuple[str, ...]
    weight: int = 100
    limit: int | None = None
    priority: int = 0
    owner: str = ""
    across: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one container: the cards that it computes on, and the part of its own time in which it does.

    `had`: seconds that it computed of the last `seconds` of its own, both reported once. If these are 0, nobody has
    measured it, and it is taken to go on. `unlocked`: seconds that it computed beside that while it was stopped, by
    processes that had just begun.
    """

    gpus: tuple[str, ...] = ()
    part: float = 1.0
    seconds: float = 0.0
    had: float = 0.0
    unlocked: float = 0.0
