"""The smallest shell around the arbiter: programs that use, free and ask, and headroom that only they see.

It carries effects out as the real shell does, answers `TakeBack` at once, and checks everything that must hold after
every event. No clock, no I/O.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field

from scheduler.core.arbiter import handle
from scheduler.core.effects import (
    Admitted,
    Effect,
    Granted,
    Preempt,
    Pressure,
    Refused,
    Rejected,
    Restore,
    Suspended,
    TakeBack,
)
from scheduler.core.events import (
    CameBack,
    ContainerResumed,
    Event,
    Needed,
    NotMoved,
    Returned,
    SwapInRequested,
    SwappedOut,
)
from scheduler.core.invariants import violations
from scheduler.core.state import Stage, State


@dataclass
class Process:
    """What one session holds, as it knows it itself; `calls` are its calls in flight: serial → (gpu, bytes).

    `out`: what it had on each GPU before it was swapped out.
    """

    container: str
    used: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    headroom: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    calls: dict[int, tuple[str, int]] = field(default_factory=dict)
    out: dict[str, int] = field(default_factory=dict)


class World:
    def __init__(self, policy: str = "fair", seed: int = 0) -> None:
        self.state = State(policy=policy, seed=seed)
        self.processes: dict[int, Process] = {}
        self.pressure: set[str] = set()
        self.log: list[Effect] = []
        self.swapped: set[str] = set()  # containers whose memory is not on their cards
        self.wanted: set[str] = set()  # those of them that are to come back
        self.leaving: str | None = None  # who has been asked to give way
        self.coming: set[str] = set()  # whose memory is on its way back

    def do(self, event: Event) -> list[Effect]:
        """Handles an event and everything that follows from it at once. Returns all effects."""
        effects: list[Effect] = []
        events = deque([event])
        while events:
            self.state, more = handle(self.state, events.popleft())
            effects.extend(more)
            for effect in more:
                self._carry_out(effect, events)
            if not events:
                self.check()
        self.log.extend(effects)
        return effects

    def _carry_out(self, effect: Effect, events: deque[Event]) -> None:
        match effect:
            case Granted():
                process = self.processes[effect.session]
                if effect.serial < 0:
                    assert (process.out.pop(effect.gpu), 0) == (effect.bytes, effect.extra)
                    process.used[effect.gpu] += effect.bytes
                    return
                assert process.calls.pop(effect.serial) == (effect.gpu, effect.bytes)
                process.used[effect.gpu] += effect.bytes
                process.headroom[effect.gpu] += effect.extra
                assert effect.extra >= 0
                assert effect.waited >= 0
            case Rejected():
                if process := self.processes.get(effect.session):
                    process.calls.pop(effect.serial, None)
            case Pressure():
                (self.pressure.add if effect.on else self.pressure.discard)(effect.gpu)
            case TakeBack():
                events.append(self.take_back(effect.gpu, all_=True))
            case Restore(container):
                assert not self.is_out(container)
                self.swapped.remove(container)
                self.wanted.discard(container)  # nobody need want it where all that was out has ended
                self.coming.add(container)
            case Preempt(container, whom):
                assert self.leaving is None, "two are asked to give way at once"
                assert not self.coming, "one is asked to give way while another comes back"
                assert container not in self.swapped
                assert any(request.container == whom for request in self.state.waiting)
                self.leaving = container
            case Suspended() | Admitted() | Refused():
                pass

    def take_back(self, gpu: str, *, of: str = "", all_: bool = False) -> Returned:
        mine = {key: p for key, p in self.processes.items() if of in ("", p.container)}
        taken = {key: p.headroom.pop(gpu) for key, p in mine.items() if p.headroom.get(gpu)}
        return Returned(self.state.now, gpu, taken, all=all_)

    # ---- what processes do ----

    def need(self, session: int, serial: int, gpu: str, amount: int, now: float) -> list[Effect]:
        """As the shim does: out of the headroom if that is enough, else a message."""
        process = self.processes[session]
        if process.headroom[gpu] >= amount:
            process.headroom[gpu] -= amount
            process.used[gpu] += amount
            return []
        container = self.state.containers[process.container]
        has, quota = container.leased.get(gpu, 0) + container.out.get(gpu, 0), container.quota.get(gpu, 0)
        if collected := amount <= quota < has + amount:
            self.do(self.take_back(gpu, of=process.container))
        process.calls.setdefault(serial, (gpu, amount))
        container = self.state.containers[process.container]
        if amount <= quota and not container.paused and not container.killed:
            self.stir(process.container)
        return self.do(Needed(now, session, serial, gpu, amount, collected=collected))

    def free(self, session: int, gpu: str, amount: int) -> list[Effect]:
        """Gives memory back to the headroom; under pressure the shell takes it from there at once."""
        process = self.processes[session]
        process.used[gpu] -= amount
        process.headroom[gpu] += amount
        return self.do(self.take_back(gpu)) if gpu in self.pressure else []

    def swap_out(self, container: str, now: float) -> list[Effect]:
        """Its idle headroom first, then all else."""
        mine = {key: p for key, p in self.processes.items() if p.container == container}
        for gpu in self.state.containers[container].quota:
            taken = {key: p.headroom.pop(gpu) for key, p in mine.items() if p.headroom.get(gpu)}
            self.do(Returned(now, gpu, taken))
        for process in mine.values():
            for gpu, used in process.used.items():
                process.out[gpu] = process.out.get(gpu, 0) + used + process.headroom[gpu]
            process.out = {gpu: amount for gpu, amount in process.out.items() if amount}
            process.used.clear()
            process.headroom.clear()
        self.swapped.add(container)
        self.wanted.discard(container)
        self.coming.discard(container)
        known = self.state.containers[container]
        undone = self.leaving == container and known.idle_since is None
        if (undone or not self.is_out(container)) and not known.paused and not known.killed:
            self.wanted.add(container)
        self.leaving = None if self.leaving == container else self.leaving
        return self.do(SwappedOut(now, container))

    def is_out(self, container: str) -> bool:
        """Whether a process of it has anything in host memory."""
        return any(process.out for process in self.processes.values() if process.container == container)

    def resume(self, container: str, now: float) -> list[Effect]:
        """What was moved out is asked back."""
        known = self.state.containers.get(container)
        if known and known.paused and container in self.swapped:
            self.wanted.add(container)
        return self.do(ContainerResumed(now, container))

    def not_moved(self, container: str, now: float) -> list[Effect]:
        self.forget_transfer(container)
        return self.do(NotMoved(now, container))

    def came_back(self, container: str, now: float) -> list[Effect]:
        self.coming.discard(container)
        return self.do(CameBack(now, container))

    def forget_transfer(self, container: str) -> None:
        self.coming.discard(container)
        if self.leaving == container:
            self.leaving = None

    def stir(self, container: str) -> None:
        """It will be wanted back by itself, if it has anything out."""
        if self.state.containers[container].out:
            self.wanted.add(container)

    def want_back(self, container: str, now: float) -> list[Effect]:
        self.wanted.add(container)
        return self.do(SwapInRequested(now, container))

    # ---- what must hold ----

    def check(self) -> None:
        assert violations(self.state) == []
        for key, process in self.processes.items():
            leased = self.state.sessions[key].leased
            assert dict(self.state.sessions[key].out) == process.out
            for gpu in self.state.gpus:
                used, headroom = process.used[gpu], process.headroom[gpu]
                assert used >= 0
                assert headroom >= 0
                assert leased.get(gpu, 0) - headroom == used, (key, gpu, leased, used, headroom)
        in_flight = {(key, serial) for key, process in self.processes.items() for serial in process.calls}
        assert in_flight == {(r.session, r.serial) for r in self.state.waiting if not r.back}, "a call was forgotten"
        for name in self.swapped & self.state.containers.keys():
            returning = self.state.containers[name].stage is Stage.RETURNING
            assert returning is (name in self.wanted and not self.state.containers[name].killed), name
        for name, container in self.state.containers.items():
            assert (container.stage is Stage.LEAVING) == (name == self.leaving), name
            assert (container.stage is Stage.COMING) == (name in self.coming), name
        assert self.pressure == self.state.pressed
