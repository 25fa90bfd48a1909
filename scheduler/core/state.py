"""What the arbiter knows: GPUs, containers, sessions and who waits. Immutable; every change makes a new `State`.

All sizes are bytes, all times are seconds on whatever clock the events carry. The words are those of the design:
a *session* is one process, its *lease* is what was handed to it (`leased`), and the part of the lease that it has
not used is its *headroom*. The core never knows the headroom: a process uses it without asking, so everything here
is judged as if every lease were used to the full. What comes back is told by `events.Returned`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Gpu:
    """`capacity`: what containers may hold together: NVML's total, less the reserve, less foreign memory."""

    uuid: str
    capacity: int


@dataclass(frozen=True, slots=True)
class Container:
    """One container and what it was promised.

    `quota` maps each of its GPUs to the most it may hold there. `guaranteed` containers have that reserved from the
    start. `max_wait` limits each single wait; None waits for ever. `fail_fast` is `on_shortage: fail`.
    """

    id: str
    quota: Mapping[str, int]
    owner: str = ""
    arrived: float = 0.0
    priority: int = 0
    guaranteed: bool = False
    fail_fast: bool = False
    max_wait: float | None = None
    paused: bool = False
    last_used: float = 0.0  # when it was last granted anything (for recent-use)
    waited: float = 0.0  # seconds suspended so far, ended waits only


@dataclass(frozen=True, slots=True)
class Session:
    """One process. `leased` maps a GPU to all that it was handed there, used or not."""

    id: int
    container: str
    leased: Mapping[str, int] = NOTHING


@dataclass(frozen=True, slots=True)
class Request:
    """One call that asks for memory. `suspended` becomes true once taking back idle headroom did not help it."""

    session: int
    serial: int
    container: str
    gpu: str
    bytes: int
    since: float
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """Everything a decision rests on. `waiting` is in order of arrival, or as an admin has put it."""

    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    containers: Mapping[str, Container] = field(default_factory=dict)
    sessions: Mapping[int, Session] = field(default_factory=dict)
    waiting: tuple[Request, ...] = ()
    policy: str = "fair"
    seed: int = 0
    now: float = 0.0
