"""What `top` shows, and what keys do with it. It knows no terminal and asks nobody."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import Any

from appliance.cli.client import Json
from appliance.cli.text import printable

Seen = dict[str, list[Json]]
NOTHING: Seen = {"gpus": [], "containers": [], "queue": []}


class Mode(Enum):
    LOOKING = auto()
    FILTERING = auto()  # what is typed goes into the filter
    ASKING = auto()  # whether to kill
    HELPING = auto()


def _sum(figure: str) -> Callable[[Json], int]:
    """Of a container's cards; the largest first."""
    return lambda container: -sum(gpu[figure] for gpu in container["gpus"])


# Column → what it is sorted by. The first is how REST lists them: the newest first.
ORDERS: dict[str, Callable[[Json], Any]] = {
    "AGE": lambda container: 0,  # as they came: sorting is stable
    "NAME": lambda container: container["name"].casefold(),
    "OWNER": lambda container: container["owner"].casefold(),
    "STATE": lambda container: container["state"],
    "USED": _sum("used"),
    "QUOTA": _sum("quota"),
    "PEAK": _sum("peak"),
    "IMAGE": lambda container: container["image"],
}


@dataclass
class Model:
    seen: Seen
    now: datetime
    trouble: str = ""  # why what is seen is old
    said: str = ""  # what became of the last thing that was asked for
    mode: Mode = Mode.LOOKING
    order: str = "AGE"
    backwards: bool = False
    pattern: str = ""
    chosen: str = ""  # the id of the container that is marked; it stays marked wherever it goes
    asked: Json = field(default_factory=dict)  # whom to kill, if the answer is yes
    page: int = 10  # containers that fit; whoever draws knows
    first: int = 0  # the first of those that are drawn

    def containers(self) -> list[Json]:
        """Those that the filter lets through, in order."""
        found = sorted((each for each in self.seen["containers"] if self._matches(each)), key=ORDERS[self.order])
        return found[::-1] if self.backwards else found

    def queue(self) -> list[Json]:
        return [each for each in self.seen["queue"] if self._matches(each)]

    def _matches(self, it: Json) -> bool:
        words = (str(it.get(name) or "") for name in ("name", "owner", "namespace", "image", "state", "id"))
        return not self.pattern or any(self.pattern.casefold() in word.casefold() for word in words)

    def marked(self) -> int:
        """Where the marked one is; the first if it is not there (any more)."""
        ids = [each["id"] for each in self.containers()]
        return ids.index(self.chosen) if self.chosen in ids else 0

    def scroll(self, page: int) -> None:
        """So that the marked one is among the `page` that fit."""
        self.page, at, count = max(1, page), self.marked(), len(self.containers())
        self.first = min(max(self.first, at - self.page + 1), at, max(0, count - self.page))

    def press(self, key: str) -> Json | None:
        """Returns the container that is to be killed, if this key said so."""
        if self.mode is Mode.ASKING:
            return self._answer(key)
        self.said = ""
        if self.mode is Mode.FILTERING:
            self._type(key)
        elif self.mode is Mode.HELPING:
            self.mode = Mode.LOOKING
        elif key in KEYS:
            KEYS[key](self)
        return None

    def ask(self) -> None:
        if found := self.containers():
            self.asked, self.mode = found[self.marked()], Mode.ASKING

    def _answer(self, key: str) -> Json | None:
        asked, self.asked, self.mode = self.asked, {}, Mode.LOOKING
        if key in ("y", "Y"):
            self.said = f"{asked['name']}: killing …"
            return asked
        self.said = f"{asked['name']} not killed"
        return None

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.mode = Mode.LOOKING
            self.pattern = "" if key == "escape" else self.pattern
        elif key == "backspace":
            self.pattern = self.pattern[:-1]
        elif len(key) == 1:
            self.pattern += printable(key)

    def move(self, by: int) -> None:
        if found := self.containers():
            self.chosen = found[min(max(0, self.marked() + by), len(found) - 1)]["id"]

    def sort(self, by: int) -> None:
        names = list(ORDERS)
        self.order = names[(names.index(self.order) + by) % len(names)]

    def turn(self) -> None:
        self.backwards = not self.backwards

    def filter(self) -> None:
        self.mode = Mode.FILTERING

    def help(self) -> None:
        self.mode = Mode.HELPING

    def clear(self) -> None:
        self.pattern = ""


KEYS: dict[str, Callable[[Model], None]] = {
    "up": lambda model: model.move(-1),
    "down": lambda model: model.move(1),
    "page up": lambda model: model.move(-model.page),
    "page down": lambda model: model.move(model.page),
    "home": lambda model: model.move(-len(model.seen["containers"])),
    "end": lambda model: model.move(len(model.seen["containers"])),
    "s": lambda model: model.sort(1),
    "S": lambda model: model.sort(-1),
    "r": Model.turn,
    "/": Model.filter,
    "escape": Model.clear,
    "k": Model.ask,
    "h": Model.help,
    "?": Model.help,
}
HELP = """↑ ↓           select a container; also Page Up, Page Down, Home, End
s, S          sort by the next or the previous column
r             reverse the order
/             filter by letters of name, owner, namespace, image, state or id;
              Enter keeps the filter, Escape removes it
k             kill the selected container, after a question
q, Ctrl-C     quit
h, ?          this help"""
