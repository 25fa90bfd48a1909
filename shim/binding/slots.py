"""One GPU's part of a lease page, through lease.c. All sizes are bytes."""

from collections.abc import Callable
from typing import Any

from shim.binding.native import ffi as _ffi
from shim.binding.native import lib as _lib

_WORD = 2**64 - 1  # a program may have written anything where the scheduler adds: it goes round, as in C


class _Word:
    """A property: a word of the slot, through lease.c."""

    def __init__(self, read: Callable[[Any], int]) -> None:
        self._read = read

    def __get__(self, slot: "Slot", owner: type) -> int:
        return int(self._read(slot._raw))


class _Ours(_Word):
    """The same of one that the scheduler writes."""

    def __init__(self, read: Callable[[Any], int], write: Callable[[Any, int], None]) -> None:
        super().__init__(read)
        self._write = write

    def __set__(self, slot: "Slot", value: int) -> None:
        self._write(slot._raw, value)


class Slot:
    """One GPU's part of a lease page, from the scheduler's side. lease.h says what each number means."""

    __slots__ = ("_page", "_raw")

    def __init__(self, page: object, raw: Any) -> None:
        self._page = page  # keeps the mapping alive as long as a slot of it is used
        self._raw = raw

    @property
    def uuid(self) -> bytes:
        """16 bytes, as cuDeviceGetUuid gives them. Set where a process has come to another card."""
        return bytes(_ffi.buffer(self._raw.uuid))

    @uuid.setter
    def uuid(self, uuid: bytes) -> None:
        _ffi.buffer(self._raw.uuid)[:] = uuid

    # ---- what decides ----

    @property
    def leased(self) -> int:
        """By the scheduler's words: headroom, what was granted by message, and what was measured. Perhaps nonsense."""
        return _signed(int(_lib.slot_bound(self._raw)) + self.granted + self.measured)

    def look(self, leased: int) -> int | None:
        """The headroom; None if the page does not say any more that `leased` bytes are leased."""
        headroom = int(_lib.lease_look(self._raw, leased))
        return None if headroom == _WORD else headroom

    headroom = _Word(_lib.lease_headroom)
    granted = _Word(_lib.slot_granted)  # the sum of what was granted by message
    measured = _Word(_lib.slot_measured)

    @property
    def unheard(self) -> int:
        """What was granted by message and the process has not heard of."""
        return max(0, self.granted - int(_lib.slot_accepted(self._raw)))

    def grant(self, size: int) -> None:
        """Raises the lease by `size` that a message gives to a waiting call; negative: takes that grant back."""
        _lib.set_granted(self._raw, self.granted + size & _WORD)

    def extend(self, size: int) -> None:
        """Raises the lease by `size` of headroom."""
        _lib.lease_extend(self._raw, size)

    def measure(self, size: int) -> None:
        """Raises the lease by `size` that the card shows beyond the charge; negative: lowers it."""
        _lib.set_measured(self._raw, self.measured + size & _WORD)

    def take_back(self, at_most: int) -> int:
        """Lowers the lease by up to `at_most` bytes of headroom; returns how many it was."""
        return int(_lib.lease_take_back(self._raw, at_most))

    def settle(self) -> None:
        """Takes all headroom back from a page that another scheduler has left, at whatever step."""
        _lib.lease_settle(self._raw)

    def wipe(self) -> None:
        """The process allocates nothing more by itself: somebody wrote over the scheduler's words."""
        _lib.lease_close(self._raw)

    # ---- display ----

    quota = _Ours(_lib.slot_quota, _lib.set_quota)
    elsewhere = _Ours(_lib.slot_elsewhere, _lib.set_elsewhere)
    context = _Ours(_lib.slot_context, _lib.set_context)
    overhead = _Word(_lib.slot_overhead)
    used = _Word(_lib.lease_used)
    claim = _Word(_lib.lease_claim)

    def take_peak(self) -> int:
        """The most used that frees have noted since the last look; 0 if none has."""
        return int(_lib.lease_take_peak(self._raw))

    @property
    def pressure(self) -> bool:
        return bool(_lib.slot_pressure(self._raw))

    @pressure.setter
    def pressure(self, on: bool) -> None:
        _lib.set_pressure(self._raw, int(on))

    @property
    def waiting(self) -> float:
        """Since when the container waits, in seconds on the monotonic clock; 0 if it does not."""
        return float(_lib.slot_waiting(self._raw)) / 1e9

    @waiting.setter
    def waiting(self, since: float) -> None:
        _lib.set_waiting(self._raw, max(0, int(since * 1e9)))

    # ---- the process's own side, for tests ----

    def reserve(self, size: int) -> bool:
        """Takes `size` out of the headroom if it holds that much."""
        return bool(_lib.lease_reserve(self._raw, size))

    def release(self, size: int) -> bool:
        """Puts `size` back; true if somebody waits for it."""
        return bool(_lib.lease_release(self._raw, size))

    def accept(self, size: int) -> None:
        """Has heard that `size` was granted by message."""
        _lib.lease_accept(self._raw, size)


def _signed(word: int) -> int:
    """Goes round as 64 bits do, so that no sum of words that a program wrote is too large to be compared with them."""
    return (word + 2**63 & _WORD) - 2**63
