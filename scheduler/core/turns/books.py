"""Who is there, who has the turn, and what each had of each card. Immutable; every change makes a new `Turns`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from scheduler.core.people.tree import Tree
from scheduler.core.turns.vocabulary import Mode

ROOT = None  # the ring of all people; the ring of a person has that person's name, and is of their containers
Ring = str | None


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds. `cycle`: in which each that computes has one turn; with many it is longer, for SHORTEST each.

    `longest_priority`: for so long a priority above all others keeps them waiting; then each of them has a turn.
    """

    cycle: float = 1.0
    longest_priority: float = 30.0


class Phase(StrEnum):
    """What is locked of a container. Between a question and its answer nothing else is asked for it."""

    GOING = "going"  # nothing
    STOPPING = "stopping"  # Stop is not answered yet: what it gave to the card is being done
    STOPPED = "stopped"  # everything
    STARTING = "starting"  # Go is not answered yet


@dataclass(frozen=True, slots=True)
class Seat:
    """One container on one card; seconds since it joined.

    `credit`: what it may still compute in this round of its owner's containers; less than nothing is what it owes
    them. `had`: of the card's time, which is divided among those that compute at the same time. `due`: its part of the
    time in which it computed or wanted to. `held_back`: the time in which it wanted to and was stopped. `rests`: since
    when it has not computed there; of no meaning while it does.
    """

    credit: float = 0.0
    had: float = 0.0
    due: float = 0.0
    held_back: float = 0.0
    rests: float = 0.0


@dataclass(frozen=True, slots=True)
class Purse:
    """One person on one card: what all of their containers may still compute together in this round of all people.

    It outlives the containers, so that new ones inherit what ended ones owe. `rests`: since when none of them computes
    there; None while one does.
    """

    credit: float = 0.0
    rests: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Reign:
    """`ruler`: who of a ring keeps the others waiting by its priority; `seconds`, since all others had a turn. `open`:
    they have one now."""

    ruler: str | None = None
    seconds: float = 0.0
    open: bool = False


@dataclass(frozen=True, slots=True)
class Taker:
    """A container that takes turns.

    `where`: the cards on which it computes, or wants to while it is stopped. `called`: it has the turn, or has it as
    soon as those before it have stopped. `beside`: it computes without a turn, for what it saved while it rested; all
    others that are active are in the queue. `yields`: it is being stopped to see whether it rests. `part`: of the
    time, in which it was last seen to compute. `since`: when its last turn ended or it began to compute; `began`: its
    turn, or being stopped. `drain`: how long stopping it takes, as far as is known. `left`: of its limit, in this cycle
    of its own, which ends at `refills`. `reported`: looks show later what it had without a turn; `looked`: up to when.
    `sleeps`: it uses no processor while it computes, so that `Yields` means nothing.
    """

    id: str
    seats: Mapping[str, Seat]
    weight: int = 100
    limit: int | None = None
    priority: int = 0
    owner: str = ""
    across: bool = False
    barred: bool = False
    phase: Phase = Phase.GOING
    where: frozenset[str] = frozenset()
    called: bool = False
    beside: bool = False
    yields: bool = False
    sleeps: bool = False
    reported: bool = False
    looked: float = 0.0
    part: float = 1.0
    since: float = 0.0
    began: float = 0.0
    drain: float = 0.0
    left: float = inf
    refills: float = 0.0

    @property
    def active(self) -> bool:
        """It computes or wants to, and may."""
        return bool(self.where) and not self.barred

    @property
    def queues(self) -> bool:
        """It takes turns with others."""
        return self.active and not self.beside

    @property
    def runs(self) -> bool:
        """Some of its work may be on its cards."""
        return bool(self.where) and self.phase in (Phase.GOING, Phase.STOPPING)


@dataclass(frozen=True, slots=True)
class Card:
    """`at`: up to when it is accounted for. `shares`: of 1, by person, weight and limit; of those in the queue among
    themselves, of those beside it among all. `people`: the part of each that computes there, if no limit bounds it.

    `purses`: by person. `reigns`: by ring. `before`: who had the turn before it was the present one's.
    """

    mode: Mode = Mode.SHARED
    members: tuple[str, ...] = ()
    at: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)
    people: Mapping[str, float] = field(default_factory=dict)
    purses: Mapping[str, Purse] = field(default_factory=dict)
    reigns: Mapping[Ring, Reign] = field(default_factory=dict)
    before: str | None = None


@dataclass(frozen=True, slots=True)
class Turns:
    rules: Rules = Rules()
    cards: Mapping[str, Card] = field(default_factory=dict)
    takers: Mapping[str, Taker] = field(default_factory=dict)
    now: float = 0.0
    tree: Tree = field(default_factory=Tree)


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one container: seconds since it joined. `stopped`: it is locked; `has_turn`: it is its turn, and it goes."""

    had: float
    due: float
    held_back: float
    stopped: bool
    has_turn: bool


def standing(turns: Turns, container: str, gpu: str | None = None) -> Standing:
    """How it stands on a card, or on all of its cards in sum; raises KeyError for one that has not joined.

    As of the last event about it; `Ticked` brings everybody's up to date.
    """
    taker = turns.takers[container]
    seats = [taker.seats[gpu]] if gpu is not None else list(taker.seats.values())
    return Standing(
        had=sum(seat.had for seat in seats),
        due=sum(seat.due for seat in seats),
        held_back=sum(seat.held_back for seat in seats),
        stopped=taker.phase is Phase.STOPPED,
        has_turn=taker.called and taker.phase is Phase.GOING,
    )
