"""How fast something may go: a budget of so many a second, and one second's worth in hand."""

from __future__ import annotations


class Pace:
    """So many a second, and what was not used of one second beside it."""

    def __init__(self, a_second: float, now: float) -> None:
        self._rate = self._left = float(a_second)
        self._at = now

    def take(self, now: float, amount: float = 1.0) -> float:
        """Takes it, and returns 0; or nothing, and returns the seconds until it is there."""
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        lacking = min(amount, self._rate) - self._left
        if lacking > 1e-6 * self._rate:  # less is rounding, and to wait for it would take for ever
            return lacking / self._rate
        self._left -= amount
        return 0.0
