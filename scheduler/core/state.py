"""What the arbiter knows: GPUs, containers, sessions and who waits. Immutable; every change makes a new `State`.

All sizes are bytes, all times are seconds on whatever clock the events carry. The words are those of the design:
a *session* is one process, its *lease* is what was handed to it (`leased`), and the part of the lease that it has
not used is its *headroom*. The core never knows the headroom: a process uses it without asking, so everything here
is judged as if every lease were used to the full. What comes back is reported by `events.Returned`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from scheduler.core.people.ledger import NOBODY, People

LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100


class Mode(StrEnum):
    """Which holders are preempted for those who wait (`moves/preemption.py`)."""

    OFF = "off"  # none
    IDLE = "idle"  # those that have computed nothing for a while
    SHARE = "share"  # these, and those of a side above its share of the card, for a side below its own
    ROTATE = "rotate"  # these, and those that have held for long, for calls that have waited for long
    BOOKED = "booked"  # why one is moved for a reservation (`reserved/giving.py`); no setting


class Stage(StrEnum):
    """Where the memory of a container is (`moves/`). Of these only `HERE` is false, which is the fastest look."""

    HERE = ""  # on its cards
    LEAVING = "leaving"  # being moved to host memory
    OUT = "out"  # in host memory
    RETURNING = "returning"  # in host memory, and asked back: what is lent again counts as leased
    COMING = "coming"  # all of it is lent again, and it is being moved back


@dataclass(frozen=True, slots=True)
class Preemption:
    """When holders are preempted, and what that costs. `idle` and `rotate`: after so many seconds.

    `out` and `back`: bytes a second, as measured. `least`: seconds that any transfer takes, however small. `memory`:
    bytes of host memory that all who are out may take. `able`: memory can be moved at all, whatever the mode.
    `move_share`: the part of the cards' time that moves to other cards may take (`moves/defragmentation.py`); 0: none.
    """

    mode: Mode = Mode.OFF
    idle: float = 1800.0
    rotate: float = 600.0
    out: float = 1.5 * 2**30
    back: float = 4.5 * 2**30
    memory: float = inf
    least: float = 1.0
    able: bool = True
    move_share: float = 0.0

    def seconds(self, size: int) -> float:
        """What moving so much out and back costs."""
        return 2 * self.least + size / self.out + size / self.back


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card.

    `capacity` is what containers may hold together now: NVML's total, less the reserve, less foreign memory. `most` is
    what that would be without foreign memory. `members` are the containers that have a quota here; `held` is what they
    hold together, leased or reserved, kept so that a decision need not walk them. `drained`: nothing new is placed on
    it.
    """

    uuid: str
    capacity: int
    most: int = 0
    members: tuple[str, ...] = ()
    held: int = 0
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """One container: what it was promised, and what its sessions were handed.

    `quota` maps each of its GPUs to the most it may hold there. `guaranteed` containers have that reserved from the
    start. `max_wait` limits each single wait; None waits for ever. `fail_fast` is `on_shortage: fail`. `leased` is the
    sum over `sessions`, kept so that a decision need not walk them; so is `out`, what they had on its cards when it was
    swapped out. `paused`: it gets nothing, frees nothing and does not come back until that is over. `began`: when it
    was last granted something and held nothing.

    What preemption rests on: `preemptible` is false for one that has opted out, `movable` for one whose memory would
    not come back (its processes share it), `held_since` is when it last held nothing (or came back), `idle_since` since
    when it has computed nothing (None: it computes, or that is not known). It stays until `stays_until`.

    `relocatable` is false for one that cannot come back on another card; `relocated`: when it last went to one for
    others, and `place`: since when those had waited, in whose place it comes back.

    `stands_in`: there is no container yet, only a planned launch that waits for its whole quota (`planned/`). Once it
    has been served that is guaranteed to it, and `lapses` with the first memory that a process of it is granted.
    """

    id: str
    quota: Mapping[str, int]
    owner: str = ""
    arrived: float = 0.0
    priority: int = 0
    across: bool = False  # an operator gave the priority: it counts against other people's containers, too
    guaranteed: bool = False
    fail_fast: bool = False
    max_wait: float | None = None
    paused: bool = False
    killed: bool = False  # it is being ended: nothing more is granted
    waited: float = 0.0  # seconds suspended so far, ended waits only
    leased: Mapping[str, int] = field(default_factory=dict)
    sessions: tuple[int, ...] = ()
    out: Mapping[str, int] = field(default_factory=dict)
    stage: Stage = Stage.HERE
    began: float = -inf
    preemptible: bool = True
    movable: bool = True
    held_since: float = 0.0
    idle_since: float | None = None
    stays_until: float = -inf
    relocatable: bool = True
    relocated: float = -inf
    place: float = inf
    stands_in: bool = False
    lapses: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """One process. `leased` maps a GPU to all that it was handed there, used or not; `out` to what it had there before
    it was swapped out."""

    id: int
    container: str
    leased: Mapping[str, int] = field(default_factory=dict)
    out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One call that asks for memory.

    `suspended` becomes true once taking back idle headroom did not help it; `awaiting` are the GPUs whose headroom is
    being taken back for it. `placed`: an admin has put it where it is in the queue; the policy has no say over it.
    `back`: it is not a program's, but for what a swapped session had. `session` is below 0 where there is none: the
    whole quota is asked for, by one call for each of the container's GPUs (`Container.stands_in`).
    """

    session: int
    serial: int
    container: str
    gpu: str
    bytes: int
    since: float
    suspended: bool = False
    placed: bool = False
    back: bool = False
    awaiting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Asking:
    """A launch or a change of quota that waits for idle headroom to be taken back; `container` is as it would become.

    It is decided once the headroom of every GPU in `awaiting` has been taken back.
    """

    container: Container
    awaiting: frozenset[str]


@dataclass(frozen=True, slots=True)
class Expected:
    """Containers that waited under the last scheduler and have not asked this one again (`expected.py`).

    `began`: since when; what was asked before waited under the last scheduler, too. From `until` on nobody is
    expected any more.
    """

    containers: frozenset[str] = frozenset()
    began: float = 0.0
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Reserve:
    """`bytes` of one GPU for `people` from `begins` to `ends` (`reserved/`). One of several GPUs is one for each, with
    the same `id`.

    `ends_others`: containers without a right that cannot be moved end. `seen`: when a container of its people was last
    there, at least `begins`. `is_kept`: it is in force, and not lent.
    """

    id: str
    gpu: str
    bytes: int
    people: frozenset[str]
    begins: float
    ends: float
    ends_others: bool = False
    seen: float = -inf
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """Everything a decision rests on.

    `waiting` is in order of arrival, those that an admin has placed first. `pressed` are the GPUs whose pressure flag
    is up; `spanning` are the containers with several GPUs. `calm`: nobody is paused, no GPU has more held
    than it has, and everybody can get its whole quota and end in some order (`safety.py`).
    """

    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    containers: Mapping[str, Container] = field(default_factory=dict)
    sessions: Mapping[int, Session] = field(default_factory=dict)
    waiting: tuple[Request, ...] = ()
    asking: tuple[Asking, ...] = ()
    expected: Expected = Expected()
    pressed: frozenset[str] = frozenset()
    spanning: tuple[str, ...] = ()
    calm: bool = True
    policy: str = "fair"
    preemption: Preemption = Preemption()
    saved: float = 0.0  # at `saved_at`: seconds of which nothing was used to move somebody to another card
    saved_at: float = 0.0
    seed: int = 0
    grants: int = 0  # so far; with the seed, what `random` draws from
    now: float = 0.0
    people: People = NOBODY
    reserves: tuple[Reserve, ...] = ()
