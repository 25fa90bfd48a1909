"""How fast memory moves between this host's cards and its memory: what was measured, or what others have measured.

The first time that a process is moved out is slower than the next ones (the host gives it that memory only then), so
the two are apart. Each is a mean over bytes in which the last hundred GiB or so count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GIB = 1 << 30
REMEMBERED = 128 * GIB  # bytes; beyond them what is older counts half
SUPPOSED = {"first": 0.9 * GIB, "out": 1.5 * GIB, "back": 4.5 * GIB}  # bytes a second: an H100 and an H200, PyTorch


@dataclass
class Speeds:
    """`moved`: "first", "out" or "back" → bytes and seconds so far, as `told` gave them to be kept."""

    moved: dict[str, tuple[float, float]]

    @classmethod
    def of(cls, told: Mapping[str, list[float]]) -> Speeds:
        return cls({kind: (size, seconds) for kind, (size, seconds) in told.items() if kind in SUPPOSED})

    def note(self, kind: str, size: int, seconds: float) -> None:
        before, took = self.moved.get(kind, (0.0, 0.0))
        share = 0.5 if before > REMEMBERED else 1.0
        if size > 0 and seconds > 0:
            self.moved[kind] = (share * before + size, share * took + seconds)

    def rate(self, kind: str) -> float:
        """Bytes a second."""
        size, seconds = self.moved.get(kind, (SUPPOSED[kind], 1.0))
        return size / seconds

    def told(self) -> dict[str, list[float]]:
        return {kind: list(each) for kind, each in self.moved.items()}
