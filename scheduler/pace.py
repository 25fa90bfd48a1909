"""How fast something may go: a budget of so many a second, and some in hand: one second's worth by default."""


class Pace:
    """So many a second, and what was not used before, up to `in_hand`."""

    def __init__(self, a_second: float, now: float, in_hand: float | None = None) -> None:
        self._rate = float(a_second)
        self._most = self._left = self._rate if in_hand is None else float(in_hand)
        self._at = now

    def take(self, now: float, amount: float = 1.0) -> float:
        """Takes it, and returns 0; or nothing, and returns the seconds until it is there."""
        pause = self.pause(now, amount)
        if not pause:
            self._left -= amount
        return pause

    def owe(self, amount: float) -> None:
        """Takes more than is there, if need be: what comes next waits until that is made good, a second at most."""
        self._left = max(self._left - amount, -self._rate)

    def pause(self, now: float, amount: float = 1.0) -> float:
        """The seconds until so much is there to be taken."""
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        lacking = min(amount, self._most) - self._left
        # Less than that is rounding, and to wait for it would take for ever.
        return lacking / self._rate if lacking > 1e-6 * self._rate else 0.0
