"""Stops the processes it is given for a turn, as a scheduler does, until it is killed or its input ends.

python -m tests.card.stopper PROGRAM LOCK PID…   prints the guardian's pid and its workers'
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from scheduler.card.generation import Generation
from scheduler.card.guardian import Guardian
from scheduler.card.helper import CardError, CardHelper


async def let_go(helper: CardHelper, pid: int) -> None:
    """Also if the worker that it is asked of was killed."""
    for _ in range(5):
        with contextlib.suppress(CardError):
            await helper.unlock(pid, 10.0)
            return


async def main() -> None:
    program, lock, *pids = sys.argv[1:]
    generation = Generation(Path(lock))
    helper, guardian = CardHelper(None, generation), Guardian(Path(program), generation)
    await guardian.watch(map(int, pids))
    await asyncio.gather(*(helper.stop(int(pid), 10.0) for pid in pids))
    guardian.locked(map(int, pids))
    print(guardian.pid, *(worker.pid for worker in helper._idle), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(let_go(helper, int(pid)) for pid in pids))
    guardian.release(map(int, pids))
    await guardian.close()
    await helper.close()
    print("all go on", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
