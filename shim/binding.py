"""Lease pages and wire frames for Python: the C code of lease.c, lease_v1.c and wire.h, called through cffi.

There is no second definition here: sizes, layouts, constants and the arithmetic all come from the compiled headers
(see binding_build.py). All sizes are bytes.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import mmap
import os
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

BUILD = Path(__file__).resolve().parent.parent / ".build"


def _load() -> Any:
    for path in BUILD.glob("_gpushare.*.so"):
        spec = importlib.util.spec_from_file_location("_gpushare", path)
        if spec and spec.loader:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ImportError(f"the compiled part of gpushare is not in {BUILD}: run `make native` first")


_module = _load()
_ffi: Any = _module.ffi
_lib: Any = _module.lib

# ---- wire frames -----------------------------------------------------------------------------------------------

WIRE_VERSION: int = _lib.WIRE_VERSION
WIRE_OLDEST: int = _lib.WIRE_OLDEST
FRAME_SIZE: int = _ffi.sizeof("struct wire_frame")


class Type(IntEnum):
    """What a frame is; who sends it and when is told in wire.h."""

    HELLO = _lib.WIRE_HELLO
    WELCOME = _lib.WIRE_WELCOME
    REFUSED = _lib.WIRE_REFUSED
    NEED = _lib.WIRE_NEED
    GRANTED = _lib.WIRE_GRANTED
    REJECTED = _lib.WIRE_REJECTED
    RELEASED = _lib.WIRE_RELEASED
    PHYSICAL = _lib.WIRE_PHYSICAL


class Purpose(IntEnum):
    """What a NEED is for."""

    MEMORY = _lib.WIRE_FOR_MEMORY
    CONTEXT = _lib.WIRE_FOR_CONTEXT


class Code(IntEnum):
    """Why a HELLO was refused or a NEED rejected."""

    OK = _lib.WIRE_OK
    BAD_VERSION = _lib.WIRE_BAD_VERSION
    NOT_RUNNING = _lib.WIRE_NOT_RUNNING
    OVER_QUOTA = _lib.WIRE_OVER_QUOTA
    SHORTAGE = _lib.WIRE_SHORTAGE
    KILLED = _lib.WIRE_KILLED


class BadFrame(ValueError):
    """Bytes that are no frame."""


class Frame(NamedTuple):
    """One message. `type` and `code` are plain numbers: what a peer sends need not be in the enums."""

    type: int
    slot: int = 0
    serial: int = 0
    code: int = 0
    bytes: int = 0


def pack(frame: Frame) -> bytes:
    """The frame as it travels. Raises OverflowError for a field that does not fit."""
    raw = _ffi.new("struct wire_frame *")
    raw.size = FRAME_SIZE
    raw.type, raw.slot, raw.serial, raw.code, raw.bytes = frame
    return bytes(_ffi.buffer(raw))


def unpack(data: bytes | bytearray | memoryview) -> Frame:
    """Reads exactly one frame of FRAME_SIZE bytes. Raises BadFrame for another length or a wrong size field."""
    if len(data) != FRAME_SIZE:
        raise BadFrame(f"a frame has {FRAME_SIZE} bytes, not {len(data)}")
    raw = _ffi.new("struct wire_frame *")
    _ffi.buffer(raw)[:] = bytes(data)
    if raw.size != FRAME_SIZE:
        raise BadFrame(f"a frame says that it has {raw.size} bytes; all have {FRAME_SIZE}")
    return Frame(raw.type, raw.slot, raw.serial, raw.code, raw.bytes)


# ---- lease pages -----------------------------------------------------------------------------------------------

PAGE_SIZE: int = _lib.LEASE_PAGE_SIZE
PAGE_SLOTS: int = _lib.LEASE_SLOTS
UUID_SIZE: int = _lib.LEASE_UUID_SIZE
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)  # it is we who have too little
PAGE_NAME = "gpushare-lease"  # the memfd's name, as it shows in /proc/<pid>/fd

_WORD = 2**64 - 1  # a program may have written anything where the scheduler adds: it goes round, as in C
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class BadPage(ValueError):
    """A file descriptor that is no lease page of a version that is understood."""


class Slot:
    """One GPU's part of a lease page, from the scheduler's side. What each number means is told in lease.h."""

    __slots__ = ("_page", "_raw")

    def __init__(self, page: LeasePage, raw: Any) -> None:
        self._page = page  # keeps the mapping alive as long as a slot of it is used
        self._raw = raw

    @property
    def uuid(self) -> bytes:
        """16 bytes, as cuDeviceGetUuid gives them."""
        return bytes(_ffi.buffer(self._raw.uuid))

    # ---- what decides ----

    @property
    def leased(self) -> int:
        """By the scheduler's words: headroom, what was granted by message, and what was measured. Perhaps nonsense."""
        return _signed(int(_lib.slot_bound(self._raw)) + self.granted + self.measured)

    def look(self, leased: int) -> int | None:
        """The headroom; None if the page does not say any more that `leased` bytes are leased."""
        headroom = int(_lib.lease_look(self._raw, leased))
        return None if headroom == _WORD else headroom

    @property
    def headroom(self) -> int:
        return int(_lib.lease_headroom(self._raw))

    @property
    def granted(self) -> int:
        """The sum of what was granted by message."""
        return int(_lib.slot_granted(self._raw))

    def unheard(self, unsent: int) -> int:
        """What was granted by message and the process had not heard of when it said HELLO. `unsent`: known to be so."""
        return max(0, self.granted - int(_lib.slot_accepted(self._raw)))

    @property
    def measured(self) -> int:
        return int(_lib.slot_measured(self._raw))

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

    @property
    def quota(self) -> int:
        return int(_lib.slot_quota(self._raw))

    @quota.setter
    def quota(self, value: int) -> None:
        _lib.set_quota(self._raw, value)

    @property
    def elsewhere(self) -> int:
        return int(_lib.slot_elsewhere(self._raw))

    @elsewhere.setter
    def elsewhere(self, value: int) -> None:
        _lib.set_elsewhere(self._raw, value)

    @property
    def context(self) -> int:
        return int(_lib.slot_context(self._raw))

    @context.setter
    def context(self, value: int) -> None:
        _lib.set_context(self._raw, value)

    @property
    def overhead(self) -> int:
        return int(_lib.slot_overhead(self._raw))

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
    def used(self) -> int:
        return int(_lib.lease_used(self._raw))

    @property
    def claim(self) -> int:
        return int(_lib.lease_claim(self._raw))

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


class SlotV1(Slot):
    """The same of a page of version 1 (lease_v1.h), which cannot tell what was measured or not heard of."""

    __slots__ = ()

    @property
    def leased(self) -> int:
        return _signed(int(_lib.slot_limit(self._raw)))

    def look(self, leased: int) -> int | None:
        headroom = int(_lib.lease_v1_look(self._raw, leased))
        return None if headroom == _WORD else headroom

    @property
    def headroom(self) -> int:
        return int(_lib.slot_taken(self._raw))

    @property
    def granted(self) -> int:
        return 0

    @property
    def measured(self) -> int:
        return 0

    def unheard(self, unsent: int) -> int:
        return unsent

    def grant(self, size: int) -> None:
        _lib.set_limit(self._raw, self.leased + size & _WORD)

    def extend(self, size: int) -> None:
        self.grant(size)
        _lib.lease_v1_extend(self._raw, size)

    def measure(self, size: int) -> None:
        self.grant(size)

    def take_back(self, at_most: int) -> int:
        taken = int(_lib.lease_v1_take_back(self._raw, at_most))
        self.grant(-min(taken, self.leased))
        return taken

    def settle(self) -> None:
        self.take_back(_WORD)

    def wipe(self) -> None:
        _lib.lease_v1_take_back(self._raw, _WORD)

    @property
    def context(self) -> int:
        return int(_lib.slot_accepted(self._raw))

    @context.setter
    def context(self, value: int) -> None:
        _lib.set_accepted(self._raw, value)

    def take_peak(self) -> int:
        peak = int(_lib.slot_peak(self._raw))
        _lib.set_peak(self._raw, 0)
        return peak

    @property
    def used(self) -> int:
        return max(0, self.leased - self.headroom)


class LeasePage:
    """A lease page mapped into this process: `page[0]`, `len(page)`, `for slot in page`."""

    def __init__(self, fd: int) -> None:
        """Maps the page behind `fd` and owns `fd` from now on, also when this raises. Use `create` or `adopt`.

        Raises BadPage, or OSError if the scheduler itself is out of descriptors or memory.
        """
        self._fd = fd
        try:
            self._map = mmap.mmap(fd, PAGE_SIZE)
        except (OSError, ValueError) as error:
            os.close(fd)
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                raise  # that says nothing about the page
            raise BadPage(f"it cannot be mapped: {error}") from error
        self._raw = _ffi.from_buffer("struct lease_page *", self._map)
        self._count = 0
        self._slot: type[Slot] = Slot

    @classmethod
    def create(cls, uuids: Sequence[bytes], name: str = PAGE_NAME, version: int = WIRE_VERSION) -> Self:
        """A new page with one slot per GPU; `name` shows in /proc, `version` is what its process speaks.

        Raises ValueError for too many GPUs or a UUID that is not 16 bytes.
        """
        if len(uuids) > PAGE_SLOTS:
            raise ValueError(f"a lease page holds {PAGE_SLOTS} GPUs, not {len(uuids)}")
        if any(len(uuid) != UUID_SIZE for uuid in uuids):
            raise ValueError(f"a GPU's UUID has {UUID_SIZE} bytes")
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, PAGE_SIZE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        page = cls(fd)
        page._understand(version)
        (_lib.lease_v1_page_init if version == 1 else _lib.lease_page_init)(page._raw, len(uuids))
        for index, uuid in enumerate(uuids):
            _ffi.buffer(page._raw.slot[index].uuid)[:] = uuid
        page._count = len(uuids)
        return page

    @classmethod
    def adopt(cls, fd: int) -> Self:
        """A page that a process handed back. Owns `fd`, also when it raises BadPage.

        Only a page sealed against resizing is taken: a file that shrinks under a mapping ends the one who reads it.
        """
        try:
            sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS and os.fstat(fd).st_size == PAGE_SIZE
        except OSError:
            sealed = False
        if not sealed:
            os.close(fd)
            raise BadPage("it is not a memory file of the right size, sealed against resizing")
        page = cls(fd)
        # Read once: the process can change it at any time.
        page._count = int(page._raw.slots)
        first = _lib.lease_v1_page_valid(page._raw)
        if not (first or _lib.lease_page_valid(page._raw)) or page._count > PAGE_SLOTS:
            page.close()
            raise BadPage("it was not written by this release or the one before")
        page._understand(1 if first else WIRE_VERSION)
        return page

    def _understand(self, version: int) -> None:
        self._slot = SlotV1 if version == 1 else Slot

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Closes the file descriptor. The mapping lasts until the last slot of it is forgotten."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Slot:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._slot(self, _ffi.addressof(self._raw.slot, index))

    def __iter__(self) -> Iterator[Slot]:
        return (self[index] for index in range(self._count))

    @property
    def uuids(self) -> tuple[bytes, ...]:
        return tuple(slot.uuid for slot in self)


def _signed(word: int) -> int:
    """Goes round as 64 bits do, so that no sum of words that a program wrote is too large to be compared with them."""
    return (word + 2**63 & _WORD) - 2**63
