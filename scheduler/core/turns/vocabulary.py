"""The events and effects of the turns. All times are seconds on one monotonic clock.

Everything may come late, twice, out of order or about somebody unknown: none of it raises. `Computes` and `Rests` may
be repeated at every look; that changes nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from scheduler.core.people.tree import Tree


class Mode(StrEnum):
    """How a card's computing is shared out."""

    SHARED = "shared"  # all compute at once, as the driver schedules them: nobody is stopped
    TURNS = "turns"


# ---- events: what happened --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CardSeen:
    """A card appeared, or its mode changed. One that was never seen is shared."""

    now: float
    gpu: str
    mode: Mode


@dataclass(frozen=True, slots=True)
class PeopleChanged:
    """How the cards are divided between people is another now. `tree` makes sense (people.tree.mistake)."""

    now: float
    tree: Tree


@dataclass(frozen=True, slots=True)
class Joined:
    """A container is there, on these cards, and nothing of it is locked.

    `weight` is 1 to 1000 and counts among the containers of its owner, `limit` the percent of each of its cards that it
    may have at most (None: no limit). `across`: an operator gave the priority, so that it counts against other
    people's containers, too.
    """

    now: float
    container: str
    gpus: tuple[str, ...]
    weight: int = 100
    limit: int | None = None
    priority: int = 0
    owner: str = ""
    across: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """Its rules are others now. What it owes, and what it had of this cycle's limit, stays."""

    now: float
    container: str
    weight: int = 100
    limit: int | None = None
    priority: int = 0
    across: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """It has ended: nothing is asked for it any more."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class Barred:
    """It wants no turn now: paused, swapped, moving, starting, hung. The shell counts the reasons.

    One that is stopped, or being stopped, is let go (`Go`); once that is answered by `Started` nothing is asked for it.
    """

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """It takes part again, and nothing of it is locked. The end of `Barred`, and of `NotStopped`."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class Computes:
    """It was seen to compute, on these of its cards; on all of them if none is named.

    `part`: of the time in which it was not locked, in which it did lately (0 to 1; by NVML's utilisation). Less than 1
    means something for those without a turn, and on shared cards. `seconds`: of that time, how much is reported for the
    first time, up to now; and `had`: for how many of them it computed, which one without a turn is charged. Where
    `seconds` is 0, `part` is taken to go on until the next look. `unlocked`: seconds that it computed while it was
    stopped, by processes that had just begun and were not locked yet; reported once, and charged.
    """

    now: float
    container: str
    gpus: tuple[str, ...] = ()
    part: float = 1.0
    seconds: float = 0.0
    had: float = 0.0
    unlocked: float = 0.0


@dataclass(frozen=True, slots=True)
class Charged:
    """A person had `seconds` of a card by processes that no container has any more: they have ended, and it, too."""

    now: float
    owner: str
    gpu: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Rests:
    """It was seen not to compute, for long enough in which nothing of it was locked. One that is stopped is let go."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class Yields:
    """It has the turn and seems to rest: it uses no processor. Its turn ends; what is left of it stays its own.

    It is stopped to make sure. If that takes no longer than QUIET, nothing of it was on the card: it rests, and is let
    go at once. Else it waits for its next turn, at the end of the round. Of no meaning where nobody else takes turns.
    """

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The answer to `Stop`: everything of it is locked, and what it had given to the card is done."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class NotStopped:
    """The other answer to `Stop`: it could not be, and everything of it is unlocked. It is barred by this itself.

    If it still computes, that counts as before, and is owed when it is admitted again.
    """

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class Started:
    """The answer to `Go`: nothing of it is locked any more."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed. Wanted at the latest when `wake` says; asked for nothing, it brings the figures up to date."""

    now: float


Event = (
    CardSeen | PeopleChanged | Joined | Changed | Left | Barred | Admitted | Computes | Charged | Rests | Yields
    | Stopped | NotStopped | Started | Ticked
)  # fmt: skip

# ---- effects: what is to be done --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stop:
    """Lock everything of it. Answered by `Stopped` or `NotStopped`; until then nothing else is asked for it."""

    container: str


@dataclass(frozen=True, slots=True)
class Go:
    """Unlock everything of it. Answered by `Started`; until then nothing else is asked for it."""

    container: str


Effect = Stop | Go
