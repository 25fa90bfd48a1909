"""Whatever is done at whatever moment of a turn: nothing hangs, nobody stays stopped, and all take turns afterwards.

`make turns` does a thousand steps; the suite a few of them.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.scheduler.test_turns_processes import ALWAYS, computing, goes_on, standing
from tests.support.eventually import eventually
from tests.support.host import GIB, Host, host
from tests.support.running import of_a_scheduler
from tests.support.swapped import ASKER_DIES, FAILS, LOCK, UNLOCK, at_once, fault
from web.models import Container

__all__ = ["host"]


STEPS = int(os.environ.get("TURNS_STEPS", "40"))
SEED = int(os.environ.get("TURNS_SEED", "1"))
DEEDS = {
    "pause": 6, "free": 3, "resume": 12, "weight": 4, "limit": 3, "mode": 2, "renew": 2, "restart": 1, "guardian": 2,
    "helper": 2, "stop": 2, "fault": 2, "wait": 6,
}  # fmt: skip


class Steps:
    """Three programs that compute, and what is done to them."""

    def __init__(self, host: Host, containers: list[Container]) -> None:
        self.host, self.containers, self.chance = host, containers, random.Random(SEED)
        self.did: Counter[str] = Counter()

    async def step(self) -> None:
        deed = self.chance.choices(list(DEEDS), weights=list(DEEDS.values()))[0]
        self.did[deed] += 1
        await getattr(self, f"_{deed}")(self.chance.randrange(len(self.containers)))
        await asyncio.sleep(self.chance.random() * 0.15)

    async def settle(self) -> None:
        await self._mode_is("turns")
        for each in self.containers:
            await self.host.command("change", each, compute_weight=100, compute_limit=None)
            await self.host.command("resume", each)
            await self.host.until(each, "running")

    async def _pause(self, number: int) -> None:
        await self.host.command("pause", self.containers[number])

    async def _free(self, number: int) -> None:
        await self.host.command("pause", self.containers[number], free_memory=True)

    async def _resume(self, number: int) -> None:
        await self.host.command("resume", self.containers[number])

    async def _weight(self, number: int) -> None:
        weight = self.chance.choice([1, 30, 100, 1000])
        await self.host.command("change", self.containers[number], compute_weight=weight)

    async def _limit(self, number: int) -> None:
        await self.host.command("change", self.containers[number], compute_limit=self.chance.choice([None, 5, 50]))

    async def _mode(self, number: int) -> None:
        await self._mode_is(self.chance.choice(["shared", "turns"]))

    async def _mode_is(self, mode: str) -> None:
        for gpu in self.host.up.gpus.cards:
            assert (await self.host.command("compute", gpu=gpu, compute=mode)).outcome == "done"

    async def _renew(self, number: int) -> None:
        """One is killed, and another takes its place."""
        await self.host.command("kill", self.containers[number], grace=self.chance.choice([0, 1]))
        await self.host.until(self.containers[number], "killed")
        self.containers[number] = await self.host.launch(*ALWAYS, gpu_memory=GIB // 4)

    async def _restart(self, number: int) -> None:
        await self.host.stop()
        await self.host.start()

    async def _guardian(self, number: int) -> None:
        self._kill("guardian")

    async def _helper(self, number: int) -> None:
        self._kill("helper")

    def _kill(self, part: str) -> None:
        for pid in of_a_scheduler(os.getpid())[part]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _stop(self, number: int) -> None:
        """By a signal, for a moment."""
        pids = self.host.up.computing.pids(str(self.containers[number].pk))
        for which in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, which)
            await asyncio.sleep(self.chance.random() * 0.8)

    async def _fault(self, number: int) -> None:
        fault(self.chance.choice([LOCK, UNLOCK]), self.chance.choice([FAILS, ASKER_DIES]))

    async def _wait(self, number: int) -> None:
        await asyncio.sleep(0.5)


@pytest.mark.timeout(300 + 3 * STEPS)
async def test_random_steps_leave_nobody_stopped(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once()
    monkeypatch.setattr("scheduler.card.turns.HUNG_FOR", 1.0)
    steps = Steps(host, [await computing(host) for _ in range(3)])
    for _ in range(STEPS):
        await steps.step()
    await steps.settle()
    await goes_on(host, *steps.containers)
    before = [standing(host, each).held_back for each in steps.containers]
    await eventually(
        lambda: all(standing(host, e).held_back > b for e, b in zip(steps.containers, before, strict=True))
    )
    await goes_on(host, *steps.containers)
    print(f"{STEPS} steps: {dict(steps.did)}", Path(host.home).name)
