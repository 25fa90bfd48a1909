"""Programs that containers run, by name: each is called with its process and the words after its name."""

import argparse
import asyncio
import contextlib
import re
from collections.abc import Mapping
from math import inf
from pathlib import Path

from tests.support.inprocess.process import BLOCK, CELL, MIB, OutOfMemory, Process, Program
from web.sizes import parse_size

LOOK = 0.05  # seconds between two looks for a file

_WORDS = argparse.ArgumentParser("workload")
_WORDS.add_argument("--bytes", type=parse_size)
_WORDS.add_argument("--chunks", type=int, default=4)
for _name in ("--hold", "--compute"):
    _WORDS.add_argument(_name, type=float, default=0.0)
_WORDS.add_argument("--kernel", type=float, default=1.0)
_WORDS.add_argument("--every", type=float)
_WORDS.add_argument("--until", type=Path)
_WORDS.add_argument("--gpu", type=int, default=0)
_WORDS.add_argument("--check", "--ahead")
_WORDS.add_argument("--go-on", action="store_true")


async def workload(process: Process, *words: str) -> int:
    """The demo's program (shim/workload), as far as others notice it."""
    asked = _WORDS.parse_args(words)
    size = asked.bytes or (await process.memory(asked.gpu))[0]
    part = size // asked.chunks
    part = part // BLOCK * BLOCK if part >= BLOCK else part
    for number in range(1, asked.chunks + 1):
        try:
            await process.alloc(part if number < asked.chunks else size - part * (asked.chunks - 1), asked.gpu)
        except OutOfMemory:
            process.say(f"out of memory: chunk {number} of {asked.chunks}")
            if not asked.go_on or number == 1:
                return 2
            break
        process.say(f"allocated chunk {number} of {asked.chunks}")
    if asked.compute:
        await _compute(process, asked)
    process.say(f"holding for {asked.hold:g} s" if asked.hold else "holding until there is a file")
    await asyncio.sleep(asked.hold)
    if asked.until:
        await _there(asked.until)
    await process.compute(0.001, asked.gpu)
    process.say("computed the complement")
    process.say("every byte is right")
    process.say("done")
    return 0


async def _there(file: Path) -> None:
    while not file.exists():  # noqa: ASYNC110, ASYNC240 - a file has no event
        await asyncio.sleep(LOOK)


async def _compute(process: Process, asked: argparse.Namespace) -> None:
    """Without a pause, or `every` milliseconds of each second."""
    loop = asyncio.get_running_loop()
    process.say(f"computing for {asked.compute:g} s")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(asked.compute):
            while True:
                begun = loop.time()
                await process.compute(inf if asked.every is None else asked.every / 1000, asked.gpu)
                await asyncio.sleep(max(0.0, begun + 1.0 - loop.time()))


async def notebook(process: Process, size: str) -> int:
    """Holds memory and does what is asked: a cell ("compute"), a call that needs a little more ("call"), its end."""
    for _ in range(4):
        await process.alloc(int(size) // 4)
    process.say("holding")
    number = 0
    while (what := await process.asked.get()) != "end":
        if what == "compute":
            await process.compute(0.001)
        else:
            process.machine.kernel.works(process.pid, CELL)
            await process.alloc(MIB)
            await process.free(MIB)
        number += 1
        process.say(f"cell {number} is right")
    return 0


async def asker(process: Process, size: str) -> int:
    """Asks its card all the time, each time saying so; of SIGTERM it asks once more, and ends."""
    process.deaf = True
    await process.alloc(int(size))
    process.say("holding")
    while not process.terminated.is_set():
        await process.ask()
        process.say(f"{process.pid} has asked")
        await asyncio.sleep(LOOK)
    await process.ask()
    process.say("saved")
    return 0


async def sleep(process: Process, seconds: str) -> int:
    await asyncio.sleep(float(seconds))
    return 0


async def true(process: Process) -> int:
    return 0


_STATEMENT = re.compile(r"\s*(?:while (.+?); do .+?; done|[^;]+)")


async def sh(process: Process, _: str, script: str) -> int:
    """As much of a shell as tests ask for: echo, exit, exec, PROGRAMS, trap, while :, while [ ! -e FILE ]."""
    script, traps = _without_traps(script)
    process.deaf = bool(traps)
    if not (traps and traps[0]):  # what is ended by SIGTERM is ended by its engine
        return await _run(process, script)
    running, stopping = (asyncio.create_task(each) for each in (_run(process, script), process.terminated.wait()))
    try:
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else await _run(process, traps[0])
    finally:
        running.cancel()
        stopping.cancel()


def _without_traps(script: str) -> tuple[str, list[str]]:
    found = re.match(r"trap (?:'(.*?)'|(\S+)) TERM; ", script)
    if found is None or found[2] == "exit":
        return script[found.end() :] if found else script, []
    return script[found.end() :], [found[1]]


async def _run(process: Process, script: str) -> int:
    for statement in _STATEMENT.finditer(script):
        condition, words = statement[1], statement[0].strip().removeprefix("exec ").split()
        if condition is None and words[0] == "exit":
            return int(words[1]) if len(words) > 1 else 0
        if condition is None and words[0] == "echo":
            said = " ".join(words[1:]).removesuffix(" >&2").strip('"')
            process.say(re.sub(r"\$(\w+)", lambda name: process.environment.get(name[1], ""), said))
        elif condition is None and words[0] in PROGRAMS:
            await PROGRAMS[words[0]](process, *words[1:])
        elif condition is not None and (file := re.fullmatch(r"\[ ! -e (\S+) \]", condition)):
            await _there(Path(file[1]))
        elif condition == ":":
            await asyncio.Event().wait()
        else:
            raise NotImplementedError(statement[0])
    return 0


_ALL: tuple[Program, ...] = (workload, notebook, asker, sleep, true, sh)
PROGRAMS: Mapping[str, Program] = {program.__name__: program for program in _ALL}
