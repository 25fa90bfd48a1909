"""Bytes to messages and back: the frames of shim/wire.h, whose C definition is the only one.

A frame has a fixed size, so reading needs no buffer management: at most one unfinished frame is ever kept, and a size
that differs is an error by definition.
"""

from collections.abc import Iterator

from scheduler.core.effects import Reason
from shim.binding import FRAME_SIZE, WIRE_VERSION, BadFrame, Code, Frame, Purpose, Type, pack, unpack

__all__ = [
    "CODES", "FRAME_SIZE", "WIRE_VERSION", "Code", "Frame", "Purpose", "Reader", "Type", "WireError",
    "pack",
]  # fmt: skip

FROM_PROCESS = frozenset({Type.HELLO, Type.NEED, Type.RELEASED, Type.PHYSICAL})

# What a process is sent: it need not know more than whether waiting could have helped.
CODES = {
    Reason.OVER_QUOTA: Code.OVER_QUOTA,
    Reason.OVER_CAPACITY: Code.OVER_QUOTA,
    Reason.INVALID: Code.OVER_QUOTA,
    Reason.SHORTAGE: Code.SHORTAGE,
    Reason.WAITED_TOO_LONG: Code.SHORTAGE,
    Reason.UNSAFE: Code.SHORTAGE,
    Reason.KILLED: Code.KILLED,
    Reason.UNKNOWN: Code.NOT_RUNNING,
}


class WireError(Exception):
    """The other end breaks the rules of wire.h; the connection is to be closed."""


class Reader:
    """Cuts what a process sends into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that `data` completes. Raises WireError at the first wrong byte that shows itself."""
        data = self._rest + data
        whole = len(data) - len(data) % FRAME_SIZE
        self._rest = data[whole:]
        for start in range(0, whole, FRAME_SIZE):
            yield _decode(data[start : start + FRAME_SIZE])
        if len(self._rest) >= 4:
            # The size stands first, and with a wrong one half a frame never becomes a whole one.
            _decode(self._rest[:4] + _HELLO[4:])


_HELLO = pack(Frame(Type.HELLO))


def _decode(data: bytes) -> Frame:
    try:
        frame = unpack(data)
    except BadFrame as error:
        raise WireError(str(error)) from None
    if frame.type not in FROM_PROCESS:
        raise WireError(f"message type {frame.type} is none that a process sends")
    return frame
