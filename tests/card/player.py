"""Plays turns with the processes it is given, a container each, until it is killed or its input ends.

python -m tests.card.player PROGRAM LOCK PID…   prints the guardian's pid once each has been stopped
"""

import asyncio
import sys
from pathlib import Path

from scheduler.card.generation import Generation
from scheduler.card.guardian import Guardian
from scheduler.card.helper import CardHelper
from scheduler.card.terms import Seen, Terms
from scheduler.card.turns import TurnPlayer
from scheduler.core.turns import Mode, Rules
from tests.support.eventually import eventually

GPU = "GPU-0"


async def main() -> None:
    program, lock, *pids = sys.argv[1:]
    generation = Generation(Path(lock))
    guardian = Guardian(Path(program), generation)
    player = TurnPlayer(CardHelper(None, generation), guardian, Rules(cycle=0.4))
    player.pids = lambda id_: {int(id_)}
    await player.start({GPU: Mode.TURNS})
    player.join({pid: Terms((GPU,)) for pid in pids})
    player.see({pid: Seen((GPU,)) for pid in pids})
    for pid in pids:
        await eventually(lambda: player.is_stopped(pid))  # noqa: B023 - awaited here
    print(guardian.pid, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await player.close()


if __name__ == "__main__":
    asyncio.run(main())
