"""How long the arbiter takes to decide, and how that grows with the number of containers.

A host of 8 GPUs in steady state, oversubscribed so that a fifth of all containers wait: containers ask, are granted or
suspended, end and start again. One decision is one call's way through the arbiter (`Needed`, and `Returned` after its
`TakeBack`), or the end of a process with all that it sets free.
"""

import time
from random import Random
from statistics import median, quantiles

from scheduler.core.arbiter import handle
from scheduler.core.effects import TakeBack
from scheduler.core.events import ContainerAdded, Event, GpuSeen, Needed, Returned, SessionEnded, SessionOpened
from scheduler.core.state import State

GPUS = 8
GIB = 2**30
DECISIONS = 1000


class Host:
    def __init__(self, containers: int, spanning: float, policy: str = "fair") -> None:
        self.random = Random(containers)
        self.state = State(policy=policy)
        self.now = 0.0
        self.containers = containers
        # Half of what all quotas add up to, so that the waiting fifth has reason to wait.
        capacity = round(containers / GPUS * 4.5 * GIB * 0.5)
        for gpu in range(GPUS):
            self._decide(GpuSeen(0.0, f"g{gpu}", capacity))
        for session in range(containers):
            count = 2 if self.random.random() < spanning else 1
            gpus = self.random.sample(range(GPUS), count)
            quota = {f"g{gpu}": self.random.randrange(1, 9) * GIB for gpu in gpus}
            self._decide(ContainerAdded(0.0, f"c{session}", quota, owner=f"u{session % max(1, containers // 10)}"))
            self._decide(SessionOpened(0.0, session, f"c{session}"))

    def step(self) -> float:
        """One decision; returns the seconds it took."""
        self.now += 0.1
        waiting = {request.session for request in self.state.waiting}
        if len(waiting) < self.containers / 5:
            session = self.random.choice([each for each in range(self.containers) if each not in waiting])
            container = self.state.containers[f"c{session}"]
            gpu, quota = self.random.choice(list(container.quota.items()))
            left = quota - container.leased.get(gpu, 0)
            if left > 0:
                return self._decide(Needed(self.now, session, 1, gpu, self.random.randint(1, left)))
        else:
            session = self.random.choice([each for each in self.state.sessions if each not in waiting])
        seconds = self._decide(SessionEnded(self.now, session))
        self._decide(SessionOpened(self.now, session, f"c{session}"))
        return seconds

    def _decide(self, event: Event) -> float:
        seconds = 0.0
        events = [event]
        while events:
            began = time.perf_counter()
            self.state, effects = handle(self.state, events.pop())
            seconds += time.perf_counter() - began
            # Half of all sessions had something idle.
            events += [
                Returned(self.now, effect.gpu, {}, all=True) for effect in effects if isinstance(effect, TakeBack)
            ]
        return seconds


def measure(containers: int, spanning: float, policy: str = "fair") -> tuple[int, float, float]:
    """Containers waiting, and the median and the 99th percentile of a decision in seconds."""
    host = Host(containers, spanning, policy)
    for _ in range(containers * 3):
        host.step()
    times = [host.step() for _ in range(DECISIONS)]
    return len(host.state.waiting), median(times), quantiles(times, n=100)[-1]


def main() -> None:
    print("A decision of the arbiter: 8 GPUs, a fifth of all containers waiting")
    print(f"{'containers':>10}  {'waiting':>7}  {'on 2 GPUs':>9}  {'median':>9}  {'p99':>9}")
    for spanning in (0.0, 0.05):
        for containers in (100, 300, 1000, 3000):
            waiting, middle, high = measure(containers, spanning)
            print(f"{containers:>10}  {waiting:>7}  {spanning:>9.0%}  {middle * 1e3:>6.2f} ms  {high * 1e3:>6.2f} ms")


if __name__ == "__main__":
    main()
