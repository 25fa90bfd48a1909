"""One thing that was looked at, in words."""

from dataclasses import asdict, dataclass
from enum import StrEnum


class State(StrEnum):
    FINE = "fine"
    NOTE = "note"  # works, but somebody should know
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """`found`: what is so. `means` and `do`: what that means and what to do, unless it is fine."""

    check: str
    state: State
    found: str
    means: str = ""
    do: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)

    def text(self) -> str:
        mark = {State.FINE: "ok  ", State.NOTE: "note", State.WRONG: "BAD "}[self.state]
        rest = [f"     {line}" for line in (self.means, self.do and f"→ {self.do}") if line]
        return "\n".join([f"{mark} {self.check.replace('_', ' ')}: {self.found}", *rest])


def fine(check: str, found: str) -> Finding:
    return Finding(check, State.FINE, found)


def note(check: str, found: str, means: str, do: str) -> Finding:
    return Finding(check, State.NOTE, found, means, do)


def wrong(check: str, found: str, means: str, do: str) -> Finding:
    return Finding(check, State.WRONG, found, means, do)
