"""What is to be done: what the arbiter hands back. The shell carries effects out in order, without delay.

All sizes are bytes, all times are seconds on one monotonic clock.
"""

from dataclasses import dataclass
from enum import StrEnum

from scheduler.core.state import Mode


class Reason(StrEnum):
    """Why something was refused or rejected."""

    OVER_QUOTA = "over_quota"  # used + bytes would pass the quota
    OVER_CAPACITY = "over_capacity"  # the quota is more than its GPU can ever give
    SHORTAGE = "shortage"  # on_shortage: fail
    WAITED_TOO_LONG = "waited_too_long"  # max_wait_seconds have passed
    KILLED = "killed"
    UNKNOWN = "unknown"  # no such session, container, GPU or policy
    UNSAFE = "unsafe"  # granting it could leave others waiting for ever
    INVALID = "invalid"  # a size, priority or order that makes no sense


@dataclass(frozen=True, slots=True)
class Admitted:
    container: str


@dataclass(frozen=True, slots=True)
class Refused:
    """What an event asked for was not done. `explanation` is one sentence with the numbers, for people."""

    reason: Reason
    explanation: str
    container: str | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """Hand `bytes` to the waiting call, and `extra` more to the session's headroom. `waited` is in seconds."""

    session: int
    serial: int
    container: str
    gpu: str
    bytes: int
    extra: int
    waited: float
    was_suspended: bool


@dataclass(frozen=True, slots=True)
class Promised:
    """The planned launch that stands in for this container may begin: its whole quota is guaranteed to it from now on,
    until a process of it has its first memory."""

    container: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Answer the waiting call with CUDA's out-of-memory error."""

    session: int
    serial: int
    container: str
    gpu: str
    bytes: int
    reason: Reason
    waited: float
    was_suspended: bool


@dataclass(frozen=True, slots=True)
class Suspended:
    """The call goes on waiting: for the record and the screen; nothing is sent to the process."""

    session: int
    serial: int
    container: str
    gpu: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Restore:
    """All that the container had is lent to it again: bring it back to its cards. Answered by `CameBack`."""

    container: str


@dataclass(frozen=True, slots=True)
class Preempt:
    """Move its memory out; with it out, `whom` is served. Answered by `SwappedOut` or `NotMoved`.

    Until then it is lent nothing. None is sent while another container's memory is moving. `why`: it is idle, or
    (rotate) it has held, and `whom` has waited, for long enough; or (reserved) `whom` is a reservation.
    """

    container: str
    whom: str
    why: Mode


@dataclass(frozen=True, slots=True)
class Relocate:
    """Move it to another card, so that `whom` fits. Answered by `SwappedOut` with these cards, or `NotMoved`.

    Until then it is lent nothing. None is sent while another container's memory is moving.
    """

    container: str
    old: str
    new: str
    whom: str


@dataclass(frozen=True, slots=True)
class Pressure:
    """Set or clear the pressure flag in every lease page of this GPU. May repeat what is already so."""

    gpu: str
    on: bool


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Take back all idle headroom on this GPU, from every session; answer with `Returned(all=True)` at once."""

    gpu: str


Served = Granted | Promised
Effect = Admitted | Refused | Served | Rejected | Suspended | Restore | Preempt | Relocate | Pressure | TakeBack
