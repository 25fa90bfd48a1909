"""The gate of a lease page, through gate.c: by it programs on several cards are stopped together (gate/gate.h)."""

from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

from shim.binding.native import ffi as _ffi
from shim.binding.native import lib as _lib

ENTRIES: int = _lib.GATE_ENTRIES
BEAT: float = _lib.GATE_BEAT_NS / 1e9  # seconds: how often at least somebody who asks says so
SILENCE: float = _lib.GATE_SILENCE_NS / 1e9  # seconds after which nobody is held who hears nothing


class Kind(IntEnum):
    """Whose operations an entry counts."""

    COLLECTIVE = _lib.GATE_COLLECTIVE
    SEND = _lib.GATE_SEND
    RECEIVE = _lib.GATE_RECEIVE


KINDS = frozenset(Kind)


class Unseen(IntFlag):
    """What a process does and its gate does not see."""

    FULL = _lib.GATE_UNSEEN_FULL
    SECOND = _lib.GATE_UNSEEN_SECOND
    DEVICE = _lib.GATE_UNSEEN_DEVICE
    GRAPH = _lib.GATE_UNSEEN_GRAPH
    IDENTITY = _lib.GATE_UNSEEN_IDENTITY
    STATIC = _lib.GATE_UNSEEN_STATIC
    NVSHMEM = _lib.GATE_UNSEEN_NVSHMEM


class Entry(NamedTuple):
    """One rank's end of a channel, as it was at one look. The numbers are the process's own word, except `limit`."""

    place: int
    serial: int
    communicator: int
    kind: Kind
    left: bool
    ranks: int
    rank: int
    peer: int
    begun: int
    given: int
    wanted: int
    limit: int

    @property
    def channel(self) -> tuple[int, int, int]:
        """(communicator, source, destination), both -1 of a collective one: equal for all ends of a channel."""
        if self.kind is Kind.COLLECTIVE:
            return self.communicator, -1, -1
        ends = (self.rank, self.peer) if self.kind is Kind.SEND else (self.peer, self.rank)
        return self.communicator, *ends

    @property
    def held(self) -> bool:
        """Whether a thread waits at the gate to go beyond the limit."""
        return self.wanted > self.begun and self.wanted > self.limit


class Gate:
    """The scheduler's side of one process's gate."""

    __slots__ = ("_page", "_raw")

    def __init__(self, page: object, raw: Any) -> None:
        self._page = page  # keeps the mapping alive as long as its gate is used
        self._raw = raw

    def ask(self) -> None:
        """Shuts the gate at the limits, or says that it still is; wakes who is held, to look at them."""
        _lib.gate_ask(self._raw)

    def let_go(self) -> None:
        """Opens the gate."""
        _lib.gate_let_go(self._raw)

    @property
    def asked(self) -> int:
        """0: the gate is open."""
        return int(_lib.gate_asked(self._raw))

    @property
    def unseen(self) -> Unseen:
        return Unseen(int(_lib.gate_unseen_now(self._raw)) & sum(Unseen))

    @property
    def passed(self) -> int:
        """How often a thread went on by itself, since nothing was heard of the scheduler for SILENCE."""
        return int(_lib.gate_passed(self._raw))

    def entries(self) -> list[Entry]:
        """Those in use, and those that were left and are not in use again."""
        look = _ffi.new("struct gate_look *")
        used = min(int(_lib.gate_used(self._raw)), ENTRIES)
        return [entry for index in range(used) if (entry := self._entry(index, look)) is not None]

    def _entry(self, index: int, look: Any) -> Entry | None:
        if not _lib.gate_look(self._raw, index, look):
            return None
        left, kind = bool(look.kind & _lib.GATE_LEFT), look.kind & ~_lib.GATE_LEFT
        if kind not in KINDS:
            return None  # a program may have written anything
        return Entry(
            index, look.serial, look.communicator, Kind(kind), left,
            look.ranks, look.rank, look.peer, look.begun, look.given, look.wanted, look.limit,
        )  # fmt: skip

    def limit(self, entry: Entry, number: int) -> None:
        """How far `begun` of an entry may go while the gate is shut."""
        _lib.gate_limit(self._raw, entry.place, entry.serial, number)

    # ---- the process's own side, for tests ----

    def open(self, communicator: int, kind: Kind, ranks: int, rank: int, peer: int = 0) -> int:
        """The index of a new entry; -1 if there is none."""
        return int(_lib.gate_open(self._raw, communicator, kind, ranks, rank, peer))

    def begin(self, *steps: tuple[int, int]) -> bool:
        """Begins (index, how many) together; False: the gate holds it back, and they are wanted."""
        made = self._steps(steps)
        return bool(_lib.gate_try(self._raw, made, len(made)))

    def give(self, *steps: tuple[int, int]) -> None:
        """Has handed them to the card."""
        made = self._steps(steps)
        _lib.gate_end(self._raw, made, len(made), True)

    def leave(self, index: int) -> None:
        """Its rank has left the communicator."""
        _lib.gate_leave(self._raw, index)

    def unsee(self, what: Unseen) -> None:
        _lib.gate_unsee(self._raw, what)

    def _steps(self, steps: tuple[tuple[int, int], ...]) -> Any:
        made = _ffi.new("struct gate_step[]", len(steps))
        for step, (index, count) in zip(made, steps, strict=True):
            step.entry, step.serial, step.count = index, int(_lib.gate_serial(self._raw, index)), count
        return made
