"""The process engine, with real processes: starting, pausing and ending them, and finding them again."""

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import proc
from scheduler.engines.base import Condition, EngineError, Status
from scheduler.engines.kept import mark
from scheduler.engines.process import engine as process_engine
from scheduler.engines.process import tree
from scheduler.engines.process.engine import LOOK_AGAIN, ProcessEngine
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.engines.conftest import next_change, until_logged
from tests.engines.processes import a_launch, engine, pids_of, runtime_environment, states_of
from tests.support.disk import fill, small_disk
from tests.support.eventually import eventually, until

__all__ = ["engine", "runtime_environment"]


async def test_of_an_output_without_an_end_the_beginning_is_kept_and_the_program_goes_on(
    engine: ProcessEngine, tmp_path: Path
) -> None:
    engine._log_bytes = 1 << 20
    launch = a_launch(
        tmp_path, "/bin/sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo the end >&2; exit 3"
    )
    await engine.launch(launch)
    assert (await next_change(engine, Condition.ENDED)).exit_code == 3
    assert launch.log_path.read_bytes() == b"x" * (1 << 20) + mark(1 << 20)


async def test_environment_is_the_launchs_and_ours_and_nothing_else(
    engine: ProcessEngine, tmp_path: Path, runtime_environment: RuntimeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_SECRET_KEY", "not for programs")
    given = {"GPUSHARE_MEMORY_LIMIT": "1024", "MINE": "yes", "LD_PRELOAD": "/evil.so", "NVIDIA_VISIBLE_DEVICES": "all"}
    launch = a_launch(tmp_path, "/usr/bin/env", environment=given)
    await engine.launch(launch)
    await next_change(engine, Condition.ENDED)
    seen = dict(line.split("=", 1) for line in launch.log_path.read_text().splitlines() if "=" in line)
    assert runtime_environment.simulation is not None
    assert {name: seen[name] for name in seen if name.startswith(("GPUSHARE", "CUDA", "NVIDIA", "LD_", "MINE"))} == {
        "GPUSHARE_MEMORY_LIMIT": "1024",
        "GPUSHARE_SOCKET": str(launch.socket_dir / "gpushare.sock"),
        "GPUSHARE_SIM": str(runtime_environment.simulation.state),
        "MINE": "yes",
        "LD_PRELOAD": str(runtime_environment.shim),
        "LD_LIBRARY_PATH": str(runtime_environment.simulation.libraries),
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
        "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2",
    }


async def test_signal_shows_as_128_and_its_number(engine: ProcessEngine, tmp_path: Path) -> None:
    await engine.launch(a_launch(tmp_path, "/bin/sh", "-c", "kill -SEGV $$"))
    assert (await next_change(engine, Condition.ENDED)).exit_code == 128 + signal.SIGSEGV


async def test_without_a_command_there_is_nothing_to_run(engine: ProcessEngine, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="Say what to run") as caught:
        await engine.launch(a_launch(tmp_path))
    assert caught.value.field == "command"


async def test_program_begins_in_the_folder_asked_for_else_at_the_root(engine: ProcessEngine, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    for asked, place in ((f"{tmp_path}/work", f"{tmp_path}/work"), ("", "/")):
        launch = a_launch(tmp_path, "/bin/pwd", working_dir=asked)
        await engine.launch(launch)
        assert await until_logged(launch, "\n") == f"{place}\n"


@pytest.mark.parametrize("name", ["missing", "file", "x" * 300])
async def test_folder_that_is_none_is_refused_and_leaves_nothing(
    engine: ProcessEngine, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="There is no folder /") as caught:
        await engine.launch(a_launch(tmp_path, "true", working_dir=f"{tmp_path}/{name}"))
    assert (caught.value.code, caught.value.field, caught.value.status) == ("no_such_folder", "working_dir", 400)
    assert await engine.statuses() == []


TWO = ("/bin/sh", "-c", "setsid sleep 600 & sleep 600 & echo ready; wait")


async def test_pause_stops_every_process_and_resume_continues_them(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(tmp_path, *TWO)
    await engine.launch(launch)
    await until_logged(launch, "ready")
    await engine.pause(launch.id)
    assert states_of(engine, launch) == ["T", "T", "T"]
    assert (await next_change(engine, Condition.PAUSED)).id == launch.id
    await engine.pause(launch.id)
    await engine.resume(launch.id)
    assert (await next_change(engine, Condition.RUNNING)).id == launch.id
    assert "T" not in states_of(engine, launch)


async def test_program_that_ends_while_it_is_being_paused_was_not_paused(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, freeze = a_launch(tmp_path, "sleep", "600"), tree.freeze
    await engine.launch(launch)

    def too_late(root: int) -> None:
        tree.signal_each(tree.descendants(root), 9)
        until((tmp_path / "processes" / launch.id / "ended.json").exists)
        freeze(root)

    monkeypatch.setattr(tree, "freeze", too_late)
    with pytest.raises(EngineError) as caught:
        await engine.pause(launch.id)
    assert caught.value.code == "not_running"


async def test_a_host_that_is_short_of_something_stops_and_loses_nothing(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch leaves nothing or runs; a pause that cannot be looked at lets the program go on."""

    def short(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    launch = a_launch(tmp_path, "sleep", "600")
    with monkeypatch.context() as patched:
        patched.setattr(process_engine, "keep_room", short)
        with pytest.raises(OSError, match="Too many open files"):
            await engine.launch(launch)
    assert list((tmp_path / "processes").iterdir()) == []
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_watch", short)
        assert (await engine.launch(launch)).condition is Condition.RUNNING
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_tell_living", short)
        with pytest.raises(OSError, match="Too many open files"):
            await engine.pause(launch.id)
    assert [each.condition for each in await engine.statuses()] == [Condition.RUNNING]


async def test_stop_behind_our_back_is_seen_within_two_seconds(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two looks, not by a clock: a busy machine takes its time for each."""
    look, looks = engine._found.look, 0

    def counted(*arguments: Any) -> list[Status]:
        nonlocal looks
        looks += 1
        return look(*arguments)

    launch = a_launch(tmp_path, "sleep", "600")
    await engine.launch(launch)
    monkeypatch.setattr(engine._found, "look", counted)
    os.kill(pids_of(engine, launch)[0], signal.SIGSTOP)
    await next_change(engine, Condition.PAUSED)
    assert looks <= 2
    assert LOOK_AGAIN < 2


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("grace", [0.0, 0.2])
async def test_kill_ends_every_process_paused_ones_and_deaf_ones_too(
    engine: ProcessEngine, tmp_path: Path, paused: bool, grace: float
) -> None:
    launch = a_launch(tmp_path, "/bin/sh", "-c", "trap '' TERM; " + TWO[2])
    await engine.launch(launch)
    await until_logged(launch, "ready")
    pids = pids_of(engine, launch)
    assert len(pids) == 3
    if paused:
        await engine.pause(launch.id)
    await engine.kill(launch.id, grace=grace)
    assert not [pid for pid in pids if (found := proc.stat(pid)) and found.living]
    assert (await next_change(engine, Condition.ENDED)).exit_code == 128 + signal.SIGKILL
    await engine.kill(launch.id)


async def test_sigterm_to_a_keeper_is_its_programs(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(tmp_path, "sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    await engine.launch(launch)
    await until_logged(launch, "ready")
    os.kill(engine._found.living(launch.id).keeper, signal.SIGTERM)
    assert (await next_change(engine, Condition.ENDED)).exit_code == 3


async def test_sigterm_to_a_keeper_is_its_programs_from_its_first_moment(engine: ProcessEngine, tmp_path: Path) -> None:
    await engine.launch(
        a_launch(tmp_path, "sh", "-c", "trap 'exit 3' TERM; kill -TERM $PPID; while :; do sleep 0.05; done")
    )
    assert (await next_change(engine, Condition.ENDED)).exit_code == 3


async def test_container_that_is_launched_during_a_look_is_not_taken_for_gone(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, begun, go_on = engine._found.look, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> list[Status]:
        found = look(*arguments)
        begun.set()
        go_on.wait(60)
        return found

    monkeypatch.setattr(engine._found, "look", slow)
    await eventually(begun.is_set)
    launch = a_launch(tmp_path, "sleep", "600")
    await engine.launch(launch)
    begun.clear()
    go_on.set()
    await eventually(begun.is_set)  # the first look is through
    await engine.kill(launch.id)
    reported = []
    async with asyncio.timeout(60):
        async for status in engine.changes():
            reported.append(status.condition)
            if status.condition is not Condition.RUNNING:
                break
    assert reported == [Condition.RUNNING, Condition.ENDED]


async def test_folder_of_a_launch_that_was_cut_off_does_not_stay(engine: ProcessEngine, tmp_path: Path) -> None:
    folder = tmp_path / "processes" / "cut-off"
    folder.mkdir()
    await eventually(lambda: not folder.exists())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m") as disk:
        yield disk


async def test_full_disk_loses_no_exit_code_and_refuses_a_launch_in_words(
    tmp_path: Path, runtime_environment: RuntimeEnvironment, disk: Path
) -> None:
    engine = ProcessEngine(disk / "processes", runtime_environment)
    await engine.start()
    try:
        go = tmp_path / "go"
        launch = a_launch(tmp_path, "/bin/sh", "-c", f"while [ ! -e {go} ]; do sleep 0.02; done; exit 5")
        await engine.launch(launch)
        fill(disk)
        go.touch()
        ended = await next_change(engine, Condition.ENDED)
        assert (ended.exit_code, ended.reason) == (5, "")
        with pytest.raises(EngineError, match="disk is full") as caught:
            await engine.launch(a_launch(tmp_path, "true"))
        assert (caught.value.code, caught.value.status) == ("disk_full", 503)
        assert [status.id for status in await engine.statuses()] == [launch.id]
    finally:
        await engine.close()


async def test_nobody_waits_while_the_hosts_processes_are_looked_at(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many as any program likes, and each look reads of all of them."""
    look, threads = tree.look, []

    def noted() -> tree.Children:
        threads.append(threading.current_thread())
        return look()

    monkeypatch.setattr(tree, "look", noted)
    launch = a_launch(tmp_path, "sleep", "600")
    await engine.launch(launch)
    await engine.launch(launch)
    await engine.pause(launch.id)
    await engine.resume(launch.id)
    await engine.kill(launch.id, grace=0.1)
    await next_change(engine, Condition.ENDED)
    assert len(threads) >= 7
    assert threading.main_thread() not in threads


async def test_a_removal_waits_for_a_look_under_way_and_holds_up_nothing_else(
    engine: ProcessEngine, tmp_path: Path
) -> None:
    engine_id = (await engine.launch(a_launch(tmp_path, "true"))).engine_id
    await next_change(engine, Condition.ENDED)
    released: list[str] = []

    def release(by: str) -> None:
        if not released:
            released.append(by)
            engine._found._settling.release()

    engine._found._settling.acquire()
    asyncio.get_running_loop().call_later(0.2, release, "the loop")
    in_vain = threading.Timer(60, release, ["somebody else"])
    in_vain.start()
    await engine.remove(engine_id)
    in_vain.cancel()
    assert released == ["the loop"]
    assert await engine.statuses() == []


async def test_no_signal_is_ignored_or_blocked_in_a_program(engine: ProcessEngine, tmp_path: Path) -> None:
    """What ignores or blocks one hands that on: Python SIGPIPE and SIGXFSZ, nohup and a shell's background others."""
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        launch = a_launch(tmp_path, "/bin/cat", "/proc/self/status")
        await engine.launch(launch)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGQUIT, before)
    await next_change(engine, Condition.ENDED)
    status = dict(line.split(":", 1) for line in launch.log_path.read_text().splitlines())
    of_libc = 0b11 << 31  # 32 and 33, which no program may set by itself
    assert {int(status[name], 16) & ~of_libc for name in ("SigIgn", "SigBlk", "SigCgt")} == {0}
