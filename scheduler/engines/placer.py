"""What gives a launch to whoever chooses the host: Docker's Swarm (and Kubernetes, one day).

It is asked where there may be room, given an order, and looked at. What runs is then a container of the host that it
came to, whose scheduler takes it over when Docker mounts its volume there (scheduler/plugin/).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from scheduler.engines.asked import Asked

if TYPE_CHECKING:  # a container's keeper imports the engines' contract, and has no packages
    from web.spec.restarts import Restart

# Of `Asked`. What is not here is refused: no host can be asked for it that is not known yet.
TAKES = {"id", "name", "image", "command", "environment", "working_dir", "user", "init", "memory", "shm_size", "cpus",
         "owner"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Asked):
    """Of a placer. `cards` are numbers of GPUs, as each host counts its own; `quota` bytes on each of them.

    `key` is what the host shows that gets it, and nobody else is to know. `host` names the only one that it may come
    to; empty: any that is as `constraints` say.
    """

    quota: int
    cards: Sequence[int]
    key: str
    host: str = ""
    constraints: Sequence[str] = ()
    restart: Restart | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """One that may get containers: bytes by the number of the card, as declared, and what of it is reserved now
    or in a moment.

    `labels`: those that the placer knows it by, which are not ours. `there`: whether it takes containers now; else it
    is away, or drained. `memory`: the host's own, in bytes, and `cpus` a number; 0 while that is not known.
    """

    name: str
    declared: Mapping[int, int]
    reserved: Mapping[int, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    there: bool = True
    memory: int = 0
    cpus: float = 0.0

    def without(self, cards: Collection[int]) -> Host:
        """As if it had not declared these."""
        return replace(self, declared={card: size for card, size in self.declared.items() if card not in cards})


class Stage(StrEnum):
    WAITS = "waits"  # for a host with room
    GIVEN = "given"  # to a host
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Standing:
    """How an order stands. `said`: the placer's own words about that, or empty."""

    stage: Stage
    said: str = ""


class Placer(Protocol):
    """`whole`: what it gives launches to, by a name that nothing else has."""

    name: str
    whole: str

    async def hosts(self) -> list[Host]:
        """All that it knows, also those that are away. Raises EngineError."""

    async def submit(self, order: Order) -> None:
        """The same order again changes nothing. Raises EngineError, leaving nothing behind."""

    async def spare(self, hosts: Mapping[str, bool]) -> None:
        """Nothing new comes to those that are true; what runs there goes on. The others, if they were spared, get
        something again. A host that is not named stays as it is. Raises EngineError.
        """

    async def standing(self) -> dict[str, Standing]:
        """All orders that it has, by our id. Raises EngineError."""

    async def take_back(self, id_: str) -> None:
        """It is not to be started any more, and what runs of it ends; then it is forgotten: that may take two calls.

        Raises EngineError.
        """
