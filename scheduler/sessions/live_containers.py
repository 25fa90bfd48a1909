"""What the scheduler holds in hand for each living container and for each of its processes.

The arbiter's `State` is what decisions rest on; this is what they are carried out with: pages, descriptors,
connections. Sizes are bytes, times seconds on the monotonic clock.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from scheduler import proc
from scheduler.sessions import lease_pages
from scheduler.sessions.connection import Connection
from scheduler.sessions.lease_pages import Lease, LeasePage
from shim.binding import EXHAUSTED
from shim.binding.gate import Gate
from web.models import Swap

Pairs = Sequence[tuple[str, str]]  # old card, new card
REPORTED = 5.0  # seconds after its end in which NVML's answers may be about a process


@dataclass(eq=False, slots=True)
class Session:
    """One process. `leases`: GPU → lease, of those of the container's GPUs that its page has and this host too."""

    id: int
    container: str
    pid: int
    program: "Program"
    pidfd: int
    page: LeasePage
    leases: dict[str, Lease]
    connection: Connection | None = None
    asked: dict[int, Connection | None] = field(default_factory=dict)  # open NEEDs: serial → where the answer goes
    ended: bool = False  # the process is gone; what it held may not be
    stopped: bool = False  # it may be locked, or its memory be moved
    pairs: Sequence[Pairs] = ()  # how it may be restored, if not on the card that the driver has it on: tried in order

    def gpu(self, slot: int) -> str | None:
        """The GPU that a slot of the page stands for; None if this host does not have it any more."""
        return next((gpu for gpu, lease in self.leases.items() if lease.index == slot), None)

    def show_waiting(self, since: float | None) -> None:
        """Into its page, where the next scheduler finds it."""
        for lease in self.leases.values():
            lease.show_waiting(since)

    def close(self) -> None:
        os.close(self.pidfd)
        self.page.close()


class Withheld(NamedTuple):
    """A container's first memory is withheld: its owner's others have computed more than their share of a card. Times
    are the broker's; `until`: the latest by what is known."""

    since: float
    bytes: int
    until: float


@dataclass(eq=False, slots=True)
class LiveContainer:
    """One living container. `quota`: GPU → bytes; the pages of its new processes have their slots in this order."""

    id: str
    name: str
    quota: dict[str, int]
    owner: str = ""
    sessions: dict[int, Session] = field(default_factory=dict)
    past_shim: Mapping[int, int] = field(default_factory=dict)  # of its processes that got past it: pid → bytes
    gone: dict[int, float] = field(default_factory=dict)  # pids that it had lately → when they were found to have ended
    open_calls: int = 0  # NEEDs of its processes that are not answered yet
    physical: int = 0  # how often the card had no memory although a lease had
    waits: int = 0  # calls that were suspended and have not ended
    waits_recorded: int = 0  # those of them that were written down: all, within its budget of events, and at least one
    ttl: float | None = None  # seconds from its start
    remove_when_done: bool = False
    priority: int = 0
    compute_weight: int = 100
    compute_limit: int | None = None  # percent of each of its cards
    movable: bool = False  # its ranks use NCCL so that their memory can be moved
    engine_id: str = ""
    started_at: datetime | None = None
    finished: bool = False  # the engine says that it has ended; its memory may not be back yet
    killed: bool = False
    called_off: bool = False  # cancelled before its start was recorded: what the engine still sees of it is ignored
    paused: bool = False  # frozen, as the engine shows
    pausing: bool = False  # a person has asked for it, and it is not done yet
    stuck: bool = False  # a move of it has failed, and is tried again: some of it is stopped, or on no card
    silent_since: float | None = None  # since when the driver does not answer about it, while it is moved
    raised: bool = False  # its limit of host memory may be
    stays: float = 0.0  # seconds in which it is not preempted, once the move that failed is undone
    swap: str = ""  # how far its swapping is: Swap
    card_move: Mapping[str, str] = field(default_factory=dict)  # {"from", "to"}: it is restored on another card
    gave_way: str = ""  # why it gave way, if it has: Mode
    no_turns: str = ""  # why it could not be stopped for others; empty once it was again
    cannot_move: str = ""  # why its memory must not be moved to host memory, as was reported last
    card_stays: str = ""  # why it cannot be restored on another card, as was seen here
    not_restored: str = ""  # why its memory cannot be brought back to its cards, if that has failed for good
    unanswered: int = 0  # times in a row that it could not be moved, as a process of it did not answer
    was_out: bool = False  # its memory has been in host memory: the first time is slower
    idle: bool = False  # marked as an idle holder
    suspended_since: float | None = None
    suspended_before: float = 0.0  # seconds, ended waits only
    withheld: Withheld | None = None
    waited_since: float | None = None  # restarted scheduler: when the wait that goes on now began
    wait_recorded: bool = False  # by the last scheduler's events it waits; ours have not said yet what became of that
    peak: dict[str, int] = field(default_factory=dict)
    # GPU → seconds of computing over its life that it had, that were due to it, that it was held back; None: not known.
    computed: dict[str, tuple[float | None, float | None, float | None]] = field(default_factory=dict)
    reported: dict[str, int] = field(default_factory=dict)  # what it used by the last event that said so
    clock_ahead: float = 0.0  # seconds, as its row says
    reason: str = ""  # why it is being ended, if it is
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by a move, and a try to end one
    end: asyncio.Event = field(default_factory=asyncio.Event)

    def __str__(self) -> str:
        return self.name

    def log_fields(self) -> dict[str, str]:
        return {"container": self.name, "container_id": self.id, "owner": self.owner}

    @property
    def is_out(self) -> bool:
        """Its memory is in host memory, and on no card."""
        return self.swap == Swap.OUT

    @property
    def is_held(self) -> bool:
        """What the core knows as `paused`, and nothing else is: it gets and frees nothing until that is over."""
        return self.paused or self.pausing or self.stuck or bool(self.not_restored)

    @property
    def gates(self) -> dict[int, Gate]:
        """Host pid → the gate of each of its processes (shim/gate/gate.h)."""
        return {session.pid: session.page.gate for session in self.sessions.values() if not session.ended}

    @property
    def pids(self) -> set[int]:
        """Host pids of all its processes that may compute."""
        return {session.pid for session in self.sessions.values() if not session.ended} | self.past_shim.keys()

    def note_gone(self, pids: Iterable[int], now: float) -> None:
        """These of its processes have ended. `now`: seconds, of the same clock as `pids_lately` is asked by."""
        self.gone = {pid: at for pid, at in self.gone.items() if now - at < REPORTED} | dict.fromkeys(pids, now)

    def pids_lately(self, now: float) -> set[int]:
        """Host pids of all its processes, and of those that ended lately: NVML reports what they computed still."""
        ended = {session.pid for session in self.sessions.values() if session.ended}
        return self.pids | ended | {pid for pid, at in self.gone.items() if now - at < REPORTED}

    def leases(self, gpu: str) -> dict[int, Lease]:
        """Session → lease, of those that have one on this GPU."""
        return {session.id: session.leases[gpu] for session in self.sessions.values() if gpu in session.leases}

    def used(self, gpu: str) -> int:
        return sum(lease.used for lease in self.leases(gpu).values())

    def granted(self, gpu: str) -> int:
        return sum(lease.held for lease in self.leases(gpu).values())

    def out(self, gpu: str) -> int:
        """What of it is in host memory."""
        return sum(lease.out for lease in self.leases(gpu).values())

    def overhead(self, gpu: str) -> int:
        return sum(lease.overhead for lease in self.leases(gpu).values())

    def note_peak(self, gpu: str) -> int:
        """Brings the peak up to date; returns what is used now.

        Each process tells its own peak since the last look. They need not have come at one time, so only one
        process's is counted on top of what the others use.
        """
        leases = self.leases(gpu).values()
        uses = [lease.used for lease in leases]
        rise = max((lease.take_peak() - use for lease, use in zip(leases, uses, strict=True)), default=0)
        used = sum(uses)
        self.peak[gpu] = max(min(used + max(0, rise), max(used, self.quota[gpu])), self.peak.get(gpu, 0))
        return used

    def places(self, contexts: Mapping[str, int]) -> dict[str, lease_pages.Place]:
        return {gpu: lease_pages.Place(gpu, quota, contexts.get(gpu, 0)) for gpu, quota in self.quota.items()}


class Program(NamedTuple):
    """What a process runs, by the kernel's word (/proc/PID/stat; proc_pid_stat(5)).

    An exec puts its stack and its code at random places. Where that is switched off, by a debugger say, another run of
    the same program looks like the same one: it is charged for what the first one had, too.
    """

    started: int  # in clock ticks since boot; with the pid it names a process for good
    stack: int
    code: int


def program_of(pid: int) -> Program | None:
    """None if the process is gone. Raises OSError (EXHAUSTED)."""
    try:
        stat = proc.stat(pid)
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        return None
    return Program(stat.started, stat.stack, stat.code) if stat else None
