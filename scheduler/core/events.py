"""What can happen: what the shell around the arbiter hands in. What is then to be done: `effects.py`.

All sizes are bytes, all times are seconds on one monotonic clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.core.people.ledger import Account
from scheduler.core.people.tree import Tree
from scheduler.core.state import Preemption, Reserve

STAYS = 600.0  # seconds in which one that could not give way is not asked to again


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """A GPU appeared, or its capacity changed (foreign memory came or went).

    `most` is the capacity that it has when nothing foreign is on it; left out, it is the capacity seen now.
    """

    now: float
    gpu: str
    capacity: int
    most: int | None = None


@dataclass(frozen=True, slots=True)
class GpuDrained:
    """A GPU was taken out of service, or put back: nothing new is placed on it meanwhile."""

    now: float
    gpu: str
    drained: bool


@dataclass(frozen=True, slots=True)
class ContainerAdded:
    """A container is about to start. Answered by `Admitted` or `Refused`, for some only after a `TakeBack`.

    `running`: a restarted scheduler takes it over. That is a fact, and never refused for want of memory.
    `across`: an operator gave its priority, so that it counts against other people's containers, too.
    """

    now: float
    container: str
    quota: Mapping[str, int]
    owner: str = ""
    priority: int = 0
    guaranteed: bool = False
    fail_fast: bool = False
    max_wait: float | None = None
    paused: bool = False
    preemptible: bool = True
    running: bool = False
    across: bool = False


@dataclass(frozen=True, slots=True)
class StandIn:
    """A planned launch waits for the whole quota of a container to come, with a call like any other's (`planned/`).

    Answered by `Promised` once that is guaranteed to it; until then it holds nothing. `ContainerAdded` puts the
    container in its place, `ContainerEnded` calls it off, another one puts it on other GPUs. `since`: when it began to
    wait.
    """

    now: float
    container: str
    quota: Mapping[str, int]
    owner: str
    priority: int
    since: float


@dataclass(frozen=True, slots=True)
class QuotaChanged:
    """An admin asks for another quota. Answered like a launch; refused changes nothing."""

    now: float
    container: str
    quota: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """`across`: as of `ContainerAdded`."""

    now: float
    container: str
    priority: int
    across: bool = False


@dataclass(frozen=True, slots=True)
class ContainerPaused:
    """It will not end, free or allocate until it is resumed; what it holds stays held.

    It is frozen or about to be, or a move of it could not be ended."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class ContainerResumed:
    """It goes on; what of it is out is asked back."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class MoveBegun:
    """Its memory is being moved out: it is lent nothing. Ended by `SwappedOut` or `NotMoved`. `Preempt` implies it."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class SwappedOut:
    """Its memory has left its cards: all that its sessions were leased returns, and is remembered as `out`.

    Until it is asked back it holds nothing. For a container on its way back it calls that off. One that was moved
    while it computed, and is not paused, is asked back by this itself; so is one of which nothing is out, as what it
    held has ended meanwhile.
    """

    now: float
    container: str
    cards: Mapping[str, str] = field(default_factory=dict)  # old → new: it is to come back on other cards


@dataclass(frozen=True, slots=True)
class SwapInRequested:
    """What is out is to come back: it is asked for as a newcomer asks, with a call for each session and GPU.

    Such a call has a serial below 0; no shortage, patience or quota rejects it. Answered by `Restore`, once all
    of it is lent again.
    """

    now: float
    container: str
    since: float | None = None  # when the wait began, if a restarted scheduler takes it over


@dataclass(frozen=True, slots=True)
class CameBack:
    """Its memory is on its cards again, and it goes on: the answer to `Restore`."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class NotMoved:
    """Its memory could not be moved, out or back, and nothing is under way now. The other answer to both.

    What was to go stays, and is not asked to again for so many seconds (inf: never). What was to come is brought
    by whoever tries that again.
    """

    now: float
    container: str
    seconds: float = STAYS


@dataclass(frozen=True, slots=True)
class StaysOnCard:
    """It cannot come back on another card than the one that it leaves: it is asked to no more."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class Movable:
    """Whether its memory may be moved out. Every container is movable until this says otherwise."""

    now: float
    container: str
    movable: bool


@dataclass(frozen=True, slots=True)
class Idle:
    """It has computed nothing since then. It means nothing of one that waits, or whose memory is not on its cards."""

    now: float
    container: str
    since: float


@dataclass(frozen=True, slots=True)
class ActivityDetected:
    """It computes, or is about to. One that is out and not paused is asked back by that. `Needed` says the same."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class ContainerKilled:
    """It is being ended: its waiting calls are rejected at once; its memory returns as its sessions end."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class ContainerEnded:
    """It is gone, and every session with it."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A process said HELLO. `leased` is not empty when a restarted scheduler takes a lease page over."""

    now: float
    session: int
    container: str
    leased: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A process is gone and the card no longer shows it: its whole lease returns."""

    now: float
    session: int


@dataclass(frozen=True, slots=True)
class Needed:
    """A process asks for `bytes` that its lease does not hold (NEED). The bytes come on top of its lease.

    `collected`: no idle headroom is left on this GPU in the leases of its own container. What the quota has no room for
    then is rejected without a look at others.
    """

    now: float
    session: int
    serial: int
    gpu: str
    bytes: int
    since: float | None = None  # when the wait began, if a restarted scheduler takes a waiting call over
    collected: bool = False


@dataclass(frozen=True, slots=True)
class WaitedBefore:
    """A restarted scheduler: these waited under the last one, and their processes are about to ask again.

    Until each has, has ended, or `until` has come, none of those who wait is served before another by chance. A
    second one replaces the first.
    """

    now: float
    containers: frozenset[str]
    until: float


@dataclass(frozen=True, slots=True)
class WaitOver:
    """Of one that waited under the last scheduler: what it waited for has reached it, and it does not ask again."""

    now: float
    container: str


@dataclass(frozen=True, slots=True)
class Returned:
    """Headroom taken back from leases: session → bytes (those with nothing left out).

    `all` is true when it answers `TakeBack`: every idle byte on that GPU has now been collected.
    """

    now: float
    gpu: str
    taken: Mapping[int, int]
    all: bool = False


@dataclass(frozen=True, slots=True)
class OverheadMeasured:
    """The card shows `change` bytes more (or less) for a process than it was charged. A fact, not a request."""

    now: float
    session: int
    gpu: str
    change: int


@dataclass(frozen=True, slots=True)
class PeopleChanged:
    """From now on cards are divided by this tree. A boost that begins or ends is a change of shares."""

    now: float
    tree: Tree


@dataclass(frozen=True, slots=True)
class LedgerRestored:
    """What an earlier scheduler counted, by GPU and person, `age` seconds ago (`people.ledger.accounts`)."""

    now: float
    accounts: Mapping[str, Mapping[str, Account]]
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class UsageElsewhere:
    """What all other hosts have counted by person, and the bytes of their cards. Replaces what it said last."""

    now: float
    accounts: Mapping[str, Account]
    capacity: int


@dataclass(frozen=True, slots=True)
class Forgiven:
    """What a person has had, and what was due to it, counts no more."""

    now: float
    person: str


@dataclass(frozen=True, slots=True)
class ReservesChanged:
    """All reservations that matter soon, or are in force. Replaces what was known."""

    now: float
    reserves: tuple[Reserve, ...]


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    now: float
    policy: str


@dataclass(frozen=True, slots=True)
class PreemptionChanged:
    """Settings, or speeds that were measured."""

    now: float
    rule: Preemption


@dataclass(frozen=True, slots=True)
class Reordered:
    """An admin put the queue into another order; containers left out keep their order behind those named."""

    now: float
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed. Needed for `max_wait`, for policies that count waited time, and for giving way."""

    now: float


Event = (
    GpuSeen | GpuDrained | ContainerAdded | StandIn | QuotaChanged | PriorityChanged | ContainerPaused
    | ContainerResumed | MoveBegun | SwappedOut | SwapInRequested | CameBack | NotMoved | Movable | StaysOnCard
    | Idle | ActivityDetected | ContainerKilled | ContainerEnded | SessionOpened | SessionEnded | Needed
    | WaitedBefore | WaitOver | Returned | OverheadMeasured | PeopleChanged | LedgerRestored | UsageElsewhere
    | Forgiven | ReservesChanged | PolicyChanged | PreemptionChanged | Reordered | Ticked
)  # fmt: skip
