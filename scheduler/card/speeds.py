"""How fast memory moves between this host's cards and its memory, as measured.

The first time that a process is moved out is slower than the next ones (the host gives it that memory only then), so
the two are apart. Each is a mean over bytes, in which the last hundred GiB or so count; what others have measured
stands in it for the first second.
"""

from collections.abc import Mapping

GIB = 1 << 30
REMEMBERED = 128 * GIB  # bytes; beyond them what is older counts half
SUPPOSED = {"first": 0.9 * GIB, "out": 1.5 * GIB, "back": 4.5 * GIB}  # bytes a second: an H100 and an H200, PyTorch


class Speeds:
    """`moved`: "first", "out" and "back" → bytes and seconds so far; `kept` is what an earlier scheduler had."""

    def __init__(self, kept: Mapping[str, tuple[float, float]]) -> None:
        self.moved = {kind: kept.get(kind, (rate, 1.0)) for kind, rate in SUPPOSED.items()}

    def note(self, kind: str, size: int, seconds: float) -> None:
        before, took = self.moved[kind]
        share = 0.5 if before > REMEMBERED else 1.0
        if size > 0 and seconds > 0:
            self.moved[kind] = (share * before + size, share * took + seconds)

    def rate(self, kind: str) -> float:
        """Bytes a second."""
        size, seconds = self.moved[kind]
        return size / seconds
