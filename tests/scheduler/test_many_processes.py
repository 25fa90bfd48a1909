"""A container with as many processes as it likes holds up nobody: they are counted, and their ends come one by one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.sessions.tenants import Session
from tests.support.eventually import eventually
from tests.support.host import ROOT, Host, a_host
from tests.support.raw import Elsewhere

# Each child says HELLO, and hangs up if it is told so. All of them live until a line comes, and die at one moment.
PROCESSES = """
import os, signal, sys
from pathlib import Path
from shim.binding import WIRE_VERSION, Frame, Type
from tests.support.raw import Raw
directory, count, hangs_up = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "hang up"
children = []
for _ in range(count):
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        raw = Raw(directory)
        raw.send(Frame(Type.HELLO, code=WIRE_VERSION))
        raw.read()
        if hangs_up:
            raw.close()
        os.write(tell, b".")
        signal.pause()
    children.append(child)
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)
print("there", flush=True)
sys.stdin.readline()
for child in children:
    os.kill(child, signal.SIGKILL)
for child in children:
    os.waitpid(child, 0)
"""


@contextmanager
def processes(directory: Path, count: int, how: str = "") -> Iterator[None]:
    """They are there within the block."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROCESSES, str(directory), str(count), how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "there\n"
        yield
    finally:
        program.communicate("end\n", timeout=60)


async def a_container(host: Host) -> tuple[Path, dict[int, Session]]:
    """The folder of its socket, and its sessions: it does nothing by itself."""
    id_ = str((await host.launch("sleep", "600")).pk)
    return host.up.server.socket_dir(id_), host.up.broker.tenants[id_].sessions


async def test_of_many_that_die_at_once_each_end_leaves_the_loop_to_others(host: Host) -> None:
    """A thousand of them held up everybody for seconds: what each end takes grows with their number."""
    directory, sessions = await a_container(host)
    turns, ends = 0, []
    gone = host.up.reaper._gone

    def note(session: Session) -> None:
        ends.append(turns)
        gone(session)

    host.up.reaper._gone = note

    def live_and_die() -> None:
        with processes(directory, 30):
            pass

    dying = asyncio.create_task(asyncio.to_thread(live_and_die))
    while not dying.done() or sessions:
        await asyncio.sleep(0)
        turns += 1
    await dying
    assert len(ends) == 30
    assert len(set(ends)) == 30, "several ended without anybody else having had a turn in between"


@pytest.mark.budget("connections", "connections_in_all")
@pytest.mark.parametrize("budgets", [{"connections": 3}, {"connections_in_all": 6}], ids=["its own", "in all"])
async def test_processes_that_have_hung_up_are_counted_like_those_that_are_connected(
    transactional_db: None, settings: Any, tmp_path: Path, budgets: dict[str, int]
) -> None:
    """Each is known as long as it lives, and costs. Of six in all, who is first has three: as many as are left then."""
    settings.GPUSHARE_BUDGETS = replace(settings.GPUSHARE_BUDGETS, **budgets)
    host: Host
    async with a_host(settings, tmp_path) as host:
        directory, sessions = await a_container(host)
        other, _ = await a_container(host)
        many = processes(directory, 12, "hang up")
        await asyncio.to_thread(many.__enter__)
        try:
            assert len(sessions) == 3
            (await asyncio.to_thread(Elsewhere, other)).close()
        finally:
            await asyncio.to_thread(many.__exit__, None, None, None)
        await eventually(lambda: not sessions)
        (await asyncio.to_thread(Elsewhere, directory)).close()
