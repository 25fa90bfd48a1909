"""A container with as many processes as it likes holds up nobody: they are counted, and their ends come one by one."""

import asyncio
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler.monitors.measure import Measure
from scheduler.sessions import server
from scheduler.sessions.lease_pages import Lease
from scheduler.sessions.live_containers import LiveContainer, Session
from shim.binding import Type
from shim.binding.slots import Slot
from tests.support.eventually import eventually
from tests.support.host import MIB, ROOT, Host, a_host, host
from tests.support.raw import Elsewhere

__all__ = ["host"]


# Each child says HELLO, and hangs up if it is asked to. All of them live until a line comes, and die at one moment.
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
    return host.up.server.socket_dir(id_), host.up.broker.live_containers[id_].sessions


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


async def test_a_call_beyond_its_quota_asks_no_other_container_and_no_process_that_holds_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looked at all leases of the card three times: 5.7 ms with a thousand processes, for everybody."""
    directory, sessions = await a_container(host)
    there, theirs = await a_container(host)
    other, mine = await asyncio.to_thread(Elsewhere, there), await asyncio.to_thread(Elsewhere, directory)
    await asyncio.to_thread(other.need, MIB)
    many = processes(directory, 30)
    await asyncio.to_thread(many.__enter__)
    try:
        (gpu,) = host.up.broker.leases
        (session,) = theirs.values()
        headroom = session.leases[gpu].headroom
        looked: list[Slot] = []
        pressed: list[Lease] = []
        take_back, press = Slot.take_back, Lease.set_pressure
        monkeypatch.setattr(Slot, "take_back", lambda slot, most: looked.append(slot) or take_back(slot, most))
        monkeypatch.setattr(Lease, "set_pressure", lambda lease, on: pressed.append(lease) or press(lease, on))
        answers = [await asyncio.to_thread(mine.need, 600 * MIB) for _ in range(4)]
        assert [f"type={Type.REJECTED.value}" in answer for answer in answers] == [False, True, True, True]
        assert (len(sessions), len(looked), pressed) == (31, 3, [])
        assert session.leases[gpu].headroom == headroom > 0
    finally:
        await asyncio.to_thread(many.__exit__, None, None, None)
        mine.close()
        other.close()


async def test_between_two_containers_that_are_looked_at_others_have_the_loop(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a thousand processes took 14 ms of each second, and eight of them 110 ms in one piece."""
    for _ in range(3):
        await a_container(host)
    turns, looks = 0, []
    see = Measure._see_live_container

    def note(self: Measure, live: LiveContainer, known: Collection[int]) -> dict[int, int]:
        looks.append(turns)
        return see(self, live, known)

    monkeypatch.setattr(Measure, "_see_live_container", note)
    while len(looks) < 3:
        await asyncio.sleep(0)
        turns += 1
    assert len(set(looks)) == len(looks)


@pytest.mark.parametrize("limits", [{"CONNECTIONS": 3}, {"CONNECTIONS_IN_ALL": 6}], ids=["its own", "in all"])
async def test_processes_that_have_hung_up_are_counted_like_those_that_are_connected(
    transactional_db: None, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    """Each is known as long as it lives, and costs. Of six in all, who is first has three: as many as are left then."""
    for name, limit in limits.items():
        monkeypatch.setattr(server, name, limit)
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
