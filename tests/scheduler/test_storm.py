"""Processes that allocate, free and are killed at random: afterwards every figure is what the survivors hold.

The long one: `GPUSHARE_STORM=100x60 python -m pytest tests/scheduler/test_storm.py` (100 processes for 60 seconds).
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator

import pytest

from tests.support.card import ROOT
from tests.support.eventually import eventually
from tests.support.host import GIB, MIB, Host, a_host
from web.models import Claim

PROCESSES, SECONDS = map(int, os.environ.get("GPUSHARE_STORM", "40x10").split("x"))
QUOTA = max(4 * GIB, PROCESSES * 128 * MIB)  # 66 MiB of it for each context

# The parent never touches CUDA: its children are forks of a process that has the shim loaded but not in use.
STORM = f"""
import json, os, random, select, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.support.cuda import *

def child(held):
    random.seed(os.getpid())
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    try:
        cuda, mine = Cuda(), {{}}
    except Failed as failed:
        assert failed.code == OUT_OF_MEMORY        # the others left no room for a context
        os._exit(0)
    while not stop:
        size = random.choice([2, 4, 6, 20, 64]) * MIB
        try:
            mine[cuda.alloc(size)] = size
        except Failed as failed:
            assert failed.code == OUT_OF_MEMORY
        while mine and random.random() < 0.5:
            address = random.choice(list(mine))
            assert cuda.free(address) == 0
            del mine[address]
        time.sleep(random.random() / 100)
    os.write(held, (json.dumps([os.getpid(), sum(mine.values())]) + "\\n").encode())
    signal.pause()

def new():
    pid = os.fork()
    if pid == 0:
        try:
            child(say)
        except BaseException as error:
            os.write(2, repr(error).encode() + b"\\n")
            os._exit(1)
    return pid

heard, say = os.pipe()
children, killed, end = set(), 0, time.monotonic() + {SECONDS}
while time.monotonic() < end:
    while len(children) < {PROCESSES}:
        children.add(new())
    time.sleep(random.random() / 10)
    victim = random.choice(sorted(children))
    os.kill(victim, signal.SIGKILL)
    status = os.waitpid(victim, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a child failed"
    children.remove(victim)
    killed += 1
while len(children) > 8:
    victim = children.pop()
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
for pid in children:
    os.kill(pid, signal.SIGTERM)
survivors, rest = {{}}, set(children)
while rest:                          # each says what it holds, or has ended: it got no context, or had no handler yet
    if select.select([heard], [], [], 0.05)[0]:
        for line in os.read(heard, 65536).decode().splitlines():
            survivors.update([json.loads(line)])
    rest -= {{int(pid) for pid in survivors}}
    rest -= {{pid for pid in rest if os.waitpid(pid, os.WNOHANG)[0] == pid}}
print("survivors", json.dumps(survivors), "killed", killed, flush=True)
signal.pause()
"""


@pytest.fixture
async def host(transactional_db: None, settings, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    gpus = f"sim:1x{QUOTA // GIB + 1}GiB"
    async with a_host(settings, tmp_path_factory.mktemp("host"), gpus=gpus) as host:
        yield host


@pytest.mark.timeout(300 + 2 * SECONDS)
async def test_a_storm_of_kills_leaves_exactly_what_the_survivors_hold(host: Host) -> None:
    container = await host.launch(sys.executable, "-c", STORM, gpu_memory=QUOTA)
    await eventually(lambda: "survivors" in host.log(container), within=SECONDS + 60)
    survivors = json.loads(host.log(container).split("survivors ")[1].split(" killed ")[0])
    held = sum(survivors.values()) + len(survivors) * 66 * MIB
    print(host.log(container).partition(" killed ")[2].strip(), "killed,", len(survivors), "left, which hold", held)

    async def claim() -> Claim:
        host.up.report.publish()
        await host.up.store.flush()
        return await host.claim(container)

    for _ in range(1200):  # the last of the killed are still being cleared away
        if (await claim()).used == held:
            break
        await asyncio.sleep(0.05)
    now = await claim()
    assert now.used == held
    assert held <= now.granted <= QUOTA

    assert (await host.command("kill", container)).outcome == "done"
    ended = await host.returned(container)
    assert (ended.used, ended.granted) == (0, 0)
