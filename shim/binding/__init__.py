"""Lease pages and wire frames for Python: the C code of lease.c and wire.h, called through cffi.

There is no second definition here: sizes, layouts, constants and the arithmetic all come from the compiled headers
(see binding_build.py). What one GPU has in a page is in slots.py. All sizes are bytes.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple, Self

from shim.binding.gate import Gate
from shim.binding.native import ffi as _ffi
from shim.binding.native import lib as _lib
from shim.binding.slots import Slot

# ---- wire frames -----------------------------------------------------------------------------------------------

WIRE_VERSION: int = _lib.WIRE_VERSION
FRAME_SIZE: int = _ffi.sizeof("struct wire_frame")


class Type(IntEnum):
    """What a frame is; wire.h says who sends it and when."""

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


class Sharing(IntFlag):
    """How a process shares GPU memory (lease.h)."""

    NOW = _lib.LEASE_SHARES_NOW
    EXPORTED = _lib.LEASE_SHARES_EXPORTED
    IMPORTED = _lib.LEASE_SHARES_IMPORTED
    IPC = _lib.LEASE_SHARES_IPC
    POOL = _lib.LEASE_SHARES_POOL
    PEER = _lib.LEASE_SHARES_PEER
    MULTICAST = _lib.LEASE_SHARES_MULTICAST
    EXTERNAL = _lib.LEASE_SHARES_EXTERNAL
    HOST = _lib.LEASE_SHARES_HOST


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

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class BadPage(ValueError):
    """A file descriptor that is no lease page of this version."""


class LeasePage:
    """A lease page mapped into this process: `page[0]`, `len(page)`, `for slot in page`."""

    def __init__(self, fd: int) -> None:
        """Maps the page behind `fd` and owns `fd` from now on, also when this raises. Use `create` or `adopt`.

        Raises BadPage, or OSError if the scheduler itself is out of descriptors or memory.
        """
        self._fd = fd
        mapped = _lib.page_map(fd)
        if not mapped:
            error = OSError(_ffi.errno, os.strerror(_ffi.errno))
            os.close(fd)
            if error.errno in EXHAUSTED:
                raise error  # that says nothing about the page
            raise BadPage(f"it cannot be mapped: {error}")
        self._raw = _ffi.gc(_ffi.cast("struct lease_page *", mapped), _lib.page_unmap)
        self._count = 0

    @classmethod
    def create(cls, uuids: Sequence[bytes], name: str = PAGE_NAME) -> Self:
        """A new page with one slot per GPU; `name` shows in /proc.

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
        _lib.lease_page_init(page._raw, len(uuids))
        for index, uuid in enumerate(uuids):
            _ffi.buffer(page._raw.slot[index].uuid)[:] = uuid
        page._count = len(uuids)
        return page

    @classmethod
    def adopt(cls, fd: int) -> Self:
        """A page that was found in a process. Owns `fd`, also when it raises BadPage.

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
        if not _lib.lease_page_valid(page._raw) or page._count > PAGE_SLOTS:
            page.close()
            raise BadPage("it has another version")
        return page

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Closes the file descriptor. The mapping lasts until the last slot of it is forgotten."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def hold(self, moving: bool) -> None:
        """Whether nobody in the process may ask now if the card is done: its memory is being moved."""
        _lib.lease_hold(self._raw, moving)

    @property
    def inside(self) -> int:
        """Threads that ask just now, by the process's own word."""
        return int(_lib.lease_inside(self._raw))

    @property
    def shared(self) -> Sharing:
        """How the process shares memory between processes or cards, by its own word."""
        return Sharing(_lib.lease_shared(self._raw))

    def share(self, how: Sharing) -> None:
        """As the process does, for tests."""
        _lib.lease_share(self._raw)
        _lib.lease_shares(self._raw, how)

    @property
    def gate(self) -> Gate:
        """By which the process is stopped together with others."""
        return Gate(self, _ffi.addressof(self._raw, "gate"))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Slot:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return Slot(self, _ffi.addressof(self._raw.slot, index))

    def __iter__(self) -> Iterator[Slot]:
        return (self[index] for index in range(self._count))

    @property
    def uuids(self) -> tuple[bytes, ...]:
        return tuple(slot.uuid for slot in self)
