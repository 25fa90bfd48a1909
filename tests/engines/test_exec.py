"""One more program in a container that runs, as both engines do it."""

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

from scheduler import proc
from scheduler.engines.base import Condition, Engine, EngineError, Exec, Executed, Output
from scheduler.engines.docker import executed as docker_executed
from scheduler.engines.docker.attach import Attached
from scheduler.engines.process import tree
from scheduler.engines.process.executed import Screen
from tests.engines.conftest import changed_to, leaks_sockets
from tests.engines.test_conformance import FOREVER, KINDS, Launcher, Opener, a_launch, engine, opened, tried
from tests.support.eventually import PATIENCE, eventually

__all__ = ["a_launch", "engine", "opened"]
pytestmark = leaks_sockets
SH = ("/bin/sh", "-c")


@pytest.fixture(params=[kind for kind in KINDS if kind != "in-process"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of engines that run programs: a coroutine has none beside itself."""
    return str(request.param)


async def all_of(executed: Executed) -> tuple[bytes, bytes, int | None]:
    """Its output, its errors and its exit code."""
    written = {Output.OUT: b"", Output.ERR: b""}
    async with asyncio.timeout(PATIENCE):
        while (piece := await executed.read())[1]:
            written[piece[0]] += piece[1]
        code = await executed.exit_code()
    await executed.close()
    return written[Output.OUT], written[Output.ERR], code


async def die(executed: Executed) -> None:
    """As a scheduler that is killed: the kernel closes what it had open, and nobody ends anything."""
    if isinstance(executed, Attached):
        await Attached.close(executed)
    else:
        await executed.close()  # which does no more than that


async def until(executed: Executed, words: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(PATIENCE):
        while words not in seen:
            piece = (await executed.read())[1]
            assert piece, seen
            seen += piece
    return seen


def processes(mark: str) -> list[int]:
    """Those of this host that have `mark` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


async def test_output_errors_and_exit_code_are_the_programs_own(engine: Engine, a_launch: Launcher) -> None:
    engine_id = (await engine.launch(a_launch(*FOREVER))).engine_id
    executed = await engine.exec(engine_id, Exec((*SH, "echo out; echo wrong >&2; exit 7")))
    assert await all_of(executed) == (b"out\n", b"wrong\n", 7)


async def test_it_has_the_environment_and_the_folder_of_its_container(engine: Engine, a_launch: Launcher) -> None:
    launch = a_launch(*FOREVER, environment={"MINE": "yes"}, working_dir="/usr")
    engine_id = (await engine.launch(launch)).engine_id
    out, _, code = await all_of(await engine.exec(engine_id, Exec((*SH, "pwd; echo $MINE; echo $LD_PRELOAD"))))
    assert (out.split(b"\n")[:2], code) == ([b"/usr", b"yes"], 0)
    assert b"libgpushare.so" in out


async def test_every_byte_goes_in_and_comes_out(engine: Engine, a_launch: Launcher) -> None:
    engine_id = (await engine.launch(a_launch(*FOREVER))).engine_id
    executed = await engine.exec(engine_id, Exec(("cat",), interactive=True))
    data = bytes(range(256)) * 4000

    async def type_it() -> None:
        await executed.write(data)
        executed.end_input()

    typing = asyncio.create_task(type_it())
    assert await all_of(executed) == (data, b"", 0)
    await typing


async def test_a_terminal_has_the_size_that_it_is_given(engine: Engine, a_launch: Launcher) -> None:
    engine_id = (await engine.launch(a_launch(*FOREVER))).engine_id
    asked = Exec(("/bin/sh",), interactive=True, tty=True, rows=33, columns=111)
    executed = await engine.exec(engine_id, asked)
    await executed.write(b"stty size; echo $TERM\n")
    assert b"33 111\r\nxterm" in await until(executed, b"xterm")
    await executed.resize(20, 90)
    await executed.write(b"stty size; exit 3\n")
    out, _, code = await all_of(executed)
    assert (b"20 90" in out, code) == (True, 3)


@pytest.mark.parametrize("tty", [True, False], ids=["terminal", "pipes"])
async def test_whoever_closes_it_ends_it_and_what_it_started(engine: Engine, a_launch: Launcher, tty: bool) -> None:
    launch = a_launch(*FOREVER)
    engine_id = (await engine.launch(launch)).engine_id
    mark = f"stay-{launch.id}"
    script = f"trap '' HUP; echo ready; sleep 600 & : {mark}; while :; do sleep 0.1; done"
    executed = await engine.exec(engine_id, Exec((*SH, script), interactive=True, tty=tty))
    await until(executed, b"ready")
    await eventually(lambda: processes(mark))
    await executed.close()
    await eventually(lambda: not processes(mark))
    assert (await engine.statuses())[0].condition is Condition.RUNNING


async def test_whoever_closes_it_ends_it_beside_a_process_of_any_name(engine: Engine, a_launch: Launcher) -> None:
    """Its end is looked for among all processes of the host, and names are bytes that any program chooses."""
    name = r"printf '\377' > /proc/$$/comm"
    launch = a_launch("/bin/sh", "-c", f"{name}; while :; do sleep 0.1; done")
    engine_id = (await engine.launch(launch)).engine_id
    mark = f"named-{launch.id}"
    executed = await engine.exec(engine_id, Exec((*SH, f"echo ready; while :; do sleep 0.1; done; : {mark}")))
    await until(executed, b"ready")
    await executed.close()
    await eventually(lambda: not processes(mark))
    assert (await engine.statuses())[0].condition is Condition.RUNNING
    await engine.kill(engine_id)


async def test_many_that_do_not_care_for_their_end_hold_nobody_up(
    engine: Engine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More at once than an engine has threads."""
    monkeypatch.setattr(docker_executed, "HANGS_UP", 2 * PATIENCE)
    engine_id = (await engine.launch(a_launch(*FOREVER))).engine_id
    script = "trap '' HUP; echo ready; while :; do sleep 0.1; done"
    started = []
    for _ in range(20):
        started.append(await engine.exec(engine_id, Exec((*SH, script))))
        await until(started[-1], b"ready")
    closing = [asyncio.create_task(executed.close()) for executed in started]
    try:
        async with asyncio.timeout(PATIENCE):
            await engine.pause(engine_id)
            assert (await engine.statuses())[0].condition is Condition.PAUSED
            await engine.resume(engine_id)
    finally:
        await engine.kill(engine_id)
        await asyncio.gather(*closing)


async def test_whoever_closes_it_before_it_has_begun_ends_it_as_well(engine: Engine, a_launch: Launcher) -> None:
    """Docker answers, and begins afterwards."""
    launch = a_launch(*FOREVER)
    engine_id = (await engine.launch(launch)).engine_id
    mark = f"early-{launch.id}"

    async def hurry() -> None:
        executed = await engine.exec(engine_id, Exec((*SH, f"sleep 600; : {mark}"), interactive=True))
        await executed.close()

    await asyncio.gather(*(hurry() for _ in range(12)))
    await eventually(lambda: not processes(mark))
    assert (await engine.statuses())[0].condition is Condition.RUNNING


async def test_the_end_of_the_container_ends_it(engine: Engine, a_launch: Launcher) -> None:
    launch = a_launch(*FOREVER)
    engine_id = (await engine.launch(launch)).engine_id
    executed = await engine.exec(engine_id, Exec(("/bin/sh",), interactive=True, tty=True))
    await engine.kill(engine_id)
    await changed_to(engine, launch.id, Condition.ENDED)
    await all_of(executed)
    with pytest.raises(EngineError):
        await engine.exec(engine_id, Exec(("true",)))


async def test_what_was_left_by_a_scheduler_that_was_killed_ends_when_the_next_one_starts(
    opened: Opener, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = a_launch(*FOREVER)
    mark = f"left-{launch.id}"
    async with opened() as first:
        engine_id = (await first.launch(launch)).engine_id
        script = f"trap '' HUP; echo ready; : {mark}; while :; do sleep 0.1; done"
        executed = await first.exec(engine_id, Exec((*SH, script), tty=True))
        await until(executed, b"ready")
        await eventually(lambda: processes(mark))
        await die(executed)
    async with opened() as second:
        await eventually(lambda: not processes(mark))
        assert (await second.statuses())[0].condition is Condition.RUNNING
        await second.kill(engine_id)
        await second.remove(engine_id)


async def test_in_a_paused_one_nothing_is_started(engine: Engine, a_launch: Launcher) -> None:
    engine_id = (await engine.launch(a_launch(*FOREVER))).engine_id
    await engine.pause(engine_id)
    with pytest.raises(EngineError, match="paused"):
        await engine.exec(engine_id, Exec(("true",)))
    await engine.resume(engine_id)


async def test_a_program_that_is_not_there_is_reported(engine: Engine, a_launch: Launcher) -> None:
    engine_id = (await engine.launch(a_launch(*FOREVER))).engine_id
    executed = await tried(engine.exec(engine_id, Exec(("/no/such",))))
    if isinstance(executed, EngineError):
        assert str(executed) == "Cannot start it: /no/such: No such file or directory."
    else:  # Docker knows only when it has tried
        out, wrong, code = await all_of(executed)
        assert code in (126, 127)
        assert b"no such file" in out + wrong


def test_a_session_is_its_leader_and_what_it_started() -> None:
    me = proc.stat(os.getpid())
    assert me is not None
    assert os.getpid() in [each.pid for each in tree.of_session(os.getsid(0))]
    assert me.session == os.getsid(0)


async def test_streams_that_are_taken_are_the_programs_own(engine: Engine, a_launch: Launcher) -> None:
    """Docker's is one socket, and its output comes in frames."""
    status = await engine.launch(a_launch(*FOREVER))
    words = (*SH, "cat; echo wrong >&2; exit 7")
    executed = await engine.exec(status.engine_id, Exec(words, interactive=True, streams=True))
    taken = executed.take()
    if len(taken) == 1:
        with socket.socket(fileno=taken[0]) as whole:
            whole.sendall(b"typed")
            whole.shutdown(socket.SHUT_WR)
            got = await asyncio.to_thread(read_all, whole.fileno())
        assert {got[:13], got[13:]} == {frame(1, b"typed"), frame(2, b"wrong\n")}
    else:
        stdin, *outputs = taken
        os.write(stdin, b"typed")
        os.close(stdin)
        assert [await asyncio.to_thread(read_all, each) for each in outputs] == [b"typed", b"wrong\n"]
        for each in outputs:
            os.close(each)
    async with asyncio.timeout(PATIENCE):
        assert await executed.exit_code() == 7
    await executed.close()


def frame(which: int, data: bytes) -> bytes:
    return bytes([which, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def read_all(descriptor: int) -> bytes:
    whole = b""
    while data := os.read(descriptor, 1 << 16):
        whole += data
    return whole


async def test_whoever_hangs_up_on_streams_ends_the_program_alone(engine: Engine, a_launch: Launcher) -> None:
    status = await engine.launch(a_launch(*FOREVER))
    left, ended = f"left-{status.engine_id}", f"ended-{status.engine_id}"
    leave, stay = (f"sh -c 'sleep 600; : {mark}'" for mark in (left, ended))
    words = (*SH, f"{leave} </dev/null >/dev/null 2>&1 & exec {stay}")
    executed = await engine.exec(status.engine_id, Exec(words, interactive=True, streams=True))
    for each in executed.take():
        os.close(each)
    await eventually(lambda: len(processes(left)) == 1 and len(processes(ended)) == 1)
    await executed.close()
    await eventually(lambda: not processes(ended))
    assert processes(left)


async def test_what_a_terminal_showed_before_its_end_is_not_lost() -> None:
    reader = asyncio.StreamReader()
    screen = Screen(reader)
    reader.feed_data(b"24 80\r\n")
    screen.connection_lost(OSError("EIO"))
    assert await reader.read(100) == b"24 80\r\n"
