"""Which GPUs can ever give a quota, and which of them a container gets: one rule for the scheduler, which chooses, and
for the web side, which refuses early and chooses where somebody may use some GPUs only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from web.errors import Problem
from web.sizes import format_size


class Card(Protocol):
    """A GPU, of the records or of the scheduler's state. Bytes.

    `capacity` is what containers may hold together now, `most` what that is when no foreign memory is in use.
    """

    @property
    def uuid(self) -> str: ...
    @property
    def capacity(self) -> int: ...
    @property
    def most(self) -> int: ...


C = TypeVar("C", bound=Card)


def able(cards: Sequence[C], quota: int, count: int) -> list[C]:
    """Those that could ever give `quota`. Problem `over_capacity`, with the figures, if they are fewer than `count`."""
    found = [card for card in cards if quota <= card.most]
    if len(found) < count:
        most = max((card.most for card in cards), default=0)
        what = "it" if count == 1 else f"all {count} GPUs"
        raise Problem(
            "over_capacity",
            f"{format_size(quota)} is more than {what} can ever give: the most is {format_size(most)}.",
            400,
            "gpu_memory",
        )
    return found


def choose(cards: Sequence[C], promised: Mapping[str, int], quota: int, count: int) -> list[str]:
    """The `count` GPUs with the most memory that nobody was promised, of those that could ever give `quota`.

    `promised` are the quotas of live containers by GPU. What is left may be negative: quotas together may exceed a
    card, that is the point of suspending. Of equals the first in `cards` is taken. Problem as above.
    """
    ranked = sorted(able(cards, quota, count), key=lambda card: promised.get(card.uuid, 0) - card.capacity)
    return [card.uuid for card in ranked[:count]]
