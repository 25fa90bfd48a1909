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

    state: State
    found: str
    means: str = ""
    do: str = ""
    check: str = ""  # which check has found it: `examine` says so

    def as_json(self) -> dict[str, str]:
        return {"check": self.check, **asdict(self)}

    def text(self) -> str:
        mark = {State.FINE: "ok  ", State.NOTE: "note", State.WRONG: "BAD "}[self.state]
        rest = [f"     {line}" for line in (self.means, self.do and f"→ {self.do}") if line]
        return "\n".join([f"{mark} {self.check.replace('_', ' ')}: {self.found}", *rest])


def fine(found: str) -> Finding:
    return Finding(State.FINE, found)


def note(found: str, means: str, do: str) -> Finding:
    return Finding(State.NOTE, found, means, do)


def wrong(found: str, means: str, do: str) -> Finding:
    return Finding(State.WRONG, found, means, do)
