"""Kills scheduler, helper and guardian, each and any two, at random moments of turns: `python -m tests.card.kills`.

Three programs that compute, far ahead of the card, take turns. After each kill all of them go on: at once where the
scheduler is gone, and where it plays on, each has its turn. Says how long it took, and how long the next scheduler
was without turns. All three at once are not killed: then it is for the next start (test_turns.py).
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median

from scheduler.card.helper import CardError, CardHelper, State
from scheduler.card.processes import LOCK_WITHIN
from tests.support.card import BUILD, Card
from tests.support.running import of_a_scheduler

PARTS = ("scheduler", "helper", "guardian")
SETS = [those for size in (1, 2) for those in combinations(PARTS, size)]
GUARDIAN = BUILD / "guardian"
CYCLE = 0.4  # seconds; of player.py
SOON = LOCK_WITHIN - 1  # seconds in which everybody goes on who was locked by one that is gone; on a busy machine
TURN = 30.0  # seconds in which each has a turn: of three that drain for a while, on a machine that may be busy
LONG = 60.0
COMPUTES = ("--bytes", "64MiB", "--check", "1MiB", "--compute", "100000", "--kernel", "2", "--ahead", "60")


@dataclass
class Outcome:
    """Seconds. `locked`: from a kill until each had gone on; `without`: from a scheduler's death to the next turns."""

    locked: list[float] = field(default_factory=list)
    without: list[float] = field(default_factory=list)


class Play:
    def __init__(self, card: Card, seed: int) -> None:
        self._card = card
        self._random = random.Random(seed)
        self._helper = CardHelper(card.env())
        self._lock = card.path.with_name("lock")
        self.outcome = Outcome()

    async def run(self, kills: int) -> Outcome:
        programs = [self._card.popen([str(BUILD / "workload"), *COMPUTES], stdout=subprocess.DEVNULL) for _ in range(3)]
        self._pids = [each.pid for each in programs]
        assert await self._helper.why_not() == ""
        for pid in self._pids:
            await self._begun(pid)
        player = self._player()
        await ready(player)
        for number in range(kills):
            those = SETS[number % len(SETS)]
            await asyncio.sleep(self._random.uniform(0.0, 2 * CYCLE))
            self._kill(player, those)
            killed = time.monotonic()
            await self._all_go_on(killed, SOON if "scheduler" in those else TURN, those)
            if "scheduler" in those:
                player.wait()
                player = self._player()
                await ready(player)
                self.outcome.without.append(time.monotonic() - killed)
        player.communicate("\n", LONG)
        await self._all_go_on(time.monotonic(), SOON, ("none",))
        assert all(each.poll() is None for each in programs), "a program has ended"
        await self._helper.close()
        return self.outcome

    def _player(self) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "tests.card.player", str(GUARDIAN), str(self._lock), *map(str, self._pids)]
        return self._card.popen(words, stdin=-1, stdout=-1)

    def _kill(self, player: subprocess.Popen[str], those: tuple[str, ...]) -> None:
        parts = {"scheduler": [player.pid], **of_a_scheduler(player.pid)}
        for part in self._random.sample(those, len(those)):
            for pid in parts[part]:
                os.kill(pid, signal.SIGKILL)

    async def _begun(self, pid: int) -> None:
        """Until it has a context."""
        async with asyncio.timeout(LONG):
            while True:
                with contextlib.suppress(CardError):
                    await self._helper.state(pid, LONG)
                    return
                await asyncio.sleep(0.01)

    async def _all_go_on(self, since: float, within: float, killed: tuple[str, ...]) -> None:
        for pid in self._pids:
            while await self._helper.state(pid, LONG) is not State.RUNNING:
                late = time.monotonic() - since
                assert late < within, f"process {pid} is locked {late:.1f} s after {' and '.join(killed)} were killed"
                await asyncio.sleep(0.002)
        self.outcome.locked.append(time.monotonic() - since)


async def ready(player: subprocess.Popen[str]) -> int:
    """The pid of its guardian, once it plays."""
    assert player.stdout is not None
    async with asyncio.timeout(LONG):
        return int(await asyncio.to_thread(player.stdout.readline))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        card = Card("sim:1x5GiB", Path(folder))
        try:
            found = asyncio.run(Play(card, asked.seed).run(asked.kills))
        finally:
            card.close()
    print(
        f"{asked.kills} kills, seed {asked.seed}: nobody stayed locked; all went on after {median(found.locked):.3f} s "
        f"(median), {max(found.locked):.3f} s at the most; without turns for {median(found.without):.2f} s (median), "
        f"{max(found.without):.2f} s at the most."
    )


if __name__ == "__main__":
    main()
