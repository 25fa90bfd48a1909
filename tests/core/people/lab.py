"""One card "g" and people's containers on it, each with one process that asks for all of its quota as it starts."""

from collections.abc import Iterable
from typing import Any

from scheduler.core.effects import Effect, Granted
from scheduler.core.events import (
    ContainerAdded,
    ContainerEnded,
    ContainerPaused,
    ContainerResumed,
    Event,
    GpuSeen,
    SessionOpened,
    Ticked,
)
from scheduler.core.people.ledger import Account, accounts
from scheduler.core.state import State
from tests.support.world import Process, World

DAY = 86400.0


class Lab:
    """`people`: person → what its first container, of the same name, asks for."""

    def __init__(self, capacity: int, **people: int) -> None:
        self.world, self.now, self.count = World(), 0.0, 0
        self.do(GpuSeen(0.0, "g", capacity))
        for person, asks in people.items():
            self.start(person, asks)

    @property
    def state(self) -> State:
        return self.world.state

    def do(self, *events: Event) -> list[Effect]:
        return [effect for event in events for effect in self.world.do(event)]

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        return _granted(self.do(Ticked(self.now)))

    def start(self, person: str, asks: int, name: str = "", **settings: Any) -> str:
        """Returns the container's name: the person's, and a number from its second on."""
        self.count += 1
        name = name or (person if person not in self.state.containers else f"{person}{self.count}")
        self.do(ContainerAdded(self.now, name, {"g": asks}, owner=person, **settings))
        self.do(SessionOpened(self.now, self.count, name))
        self.world.processes[self.count] = Process(name)
        self.world.need(self.count, 1, "g", asks, self.now)
        return name

    def end(self, name: str) -> list[str]:
        """Returns who is granted memory by it, in order."""
        (session,) = self.state.containers[name].sessions
        del self.world.processes[session]
        return _granted(self.do(ContainerEnded(self.now, name)))

    def pause(self, name: str) -> None:
        self.do(ContainerPaused(self.now, name))

    def resume(self, name: str) -> None:
        self.do(ContainerResumed(self.now, name))

    def accounts(self) -> dict[str, Account]:
        return accounts(self.state.people, self.now).get("g", {})

    def waiting(self) -> list[str]:
        return [request.container for request in self.state.waiting]


def _granted(effects: Iterable[Effect]) -> list[str]:
    return [effect.container for effect in effects if isinstance(effect, Granted)]
