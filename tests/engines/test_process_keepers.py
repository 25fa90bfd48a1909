"""The process engine's keepers, one a container: what becomes of it when the scheduler or its keeper dies."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler import proc
from scheduler.engines.base import Condition, EngineError, Exec
from scheduler.engines.process import engine as process
from scheduler.engines.process import tree
from scheduler.engines.process.engine import ProcessEngine, _keep
from scheduler.engines.process.executed import execute
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.engines.conftest import next_change, until_logged
from tests.engines.processes import a_launch, engine, pids_of, runtime_environment
from tests.support.eventually import eventually

__all__ = ["engine", "runtime_environment"]


async def test_nothing_of_a_container_outlives_its_keeper(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(tmp_path, "/bin/sh", "-c", "setsid sleep 600 & (setsid sleep 600 & exit) & echo ready; wait")
    await engine.launch(launch)
    await until_logged(launch, "ready")
    await eventually(lambda: len(pids_of(engine, launch)) >= 3)
    left = [(pid, start.started) for pid in pids_of(engine, launch) if (start := proc.stat(pid))]
    running = engine._found.running(launch.id)
    assert running is not None
    os.kill(running.keeper, signal.SIGKILL)
    ended = await next_change(engine, Condition.ENDED)
    assert (ended.exit_code, "keeper" in ended.reason) == (None, True)
    assert not [pid for pid, started in left if tree.is_alive(pid, started)]
    await engine.kill(launch.id)


async def test_nothing_of_a_container_outlives_a_keeper_that_died_while_nobody_looked(
    engine: ProcessEngine, tmp_path: Path, runtime_environment: RuntimeEnvironment
) -> None:
    launch = a_launch(tmp_path, "/bin/sh", "-c", "setsid sleep 600 & echo ready; wait")
    await engine.launch(launch)
    await until_logged(launch, "ready")
    await eventually(lambda: len(pids_of(engine, launch)) >= 2)
    left = [(pid, start.started) for pid in pids_of(engine, launch) if (start := proc.stat(pid))]
    running = engine._found.running(launch.id)
    assert running is not None
    await engine.close()
    os.kill(running.keeper, signal.SIGKILL)
    await eventually(lambda: not running.is_kept())
    after = ProcessEngine(tmp_path / "processes", runtime_environment)
    await after.start()
    try:
        await after.kill(launch.id)
        assert not [pid for pid, started in left if tree.is_alive(pid, started)]
        assert [status.condition for status in await after.statuses()] == [Condition.ENDED]
    finally:
        await after.close()


async def test_launch_that_was_cut_off_between_its_folder_and_its_first_file_runs(
    engine: ProcessEngine, tmp_path: Path
) -> None:
    launch = a_launch(tmp_path, "/bin/sh", "-c", "echo ran; exit 4")
    (tmp_path / "processes" / launch.id).mkdir()
    assert (await engine.launch(launch)).started_at is not None
    assert (await next_change(engine, Condition.ENDED)).exit_code == 4
    assert launch.log_path.read_text() == "ran\n"


async def test_launch_whose_keeper_is_killed_before_the_program_begins_is_refused(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(process.sys, "executable", str(killed))
    launch = a_launch(tmp_path, "/bin/true")
    with pytest.raises(EngineError, match="killed before the program began"):
        await engine.launch(launch)
    assert not (tmp_path / "processes" / launch.id).exists()


async def test_second_keeper_of_one_launch_starts_nothing(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler was killed after it had started a keeper, and the next one, which does not see it yet, starts one."""

    async def two(folder: Path) -> None:
        await asyncio.gather(_keep(folder), _keep(folder))

    monkeypatch.setattr(process, "_keep", two)
    launch = a_launch(tmp_path, "/bin/sh", "-c", "echo ran; exec sleep 600")
    await engine.launch(launch)
    await until_logged(launch, "ran")
    assert launch.log_path.read_text() == "ran\n"
    assert len(pids_of(engine, launch)) == 1


async def test_keeper_of_a_killed_scheduler_that_comes_late_is_not_forgotten_as_its_launch_fails(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program ran on, and nobody ever found it."""
    write = process.write_json

    def full(path: Path, content: dict[str, object]) -> None:
        write(path, content)  # what that scheduler had written, to which its keeper comes only now
        words = [sys.executable, "-SPm", "scheduler.engines.process.keeper", str(path.parent)]
        subprocess.run(words, env={"PYTHONPATH": str(process.ROOT)}, capture_output=True, check=True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(process, "write_json", full)
    launch = a_launch(tmp_path, "/bin/sleep", "600")
    launch.log_path.parent.mkdir()
    assert (await engine.launch(launch)).condition is Condition.RUNNING
    assert len(pids_of(engine, launch)) == 1
    await engine.kill(launch.id)
    assert (await next_change(engine, Condition.ENDED)).id == launch.id


async def test_once_the_program_has_ended_nobody_is_let_in_however_long_its_end_takes_to_be_written(
    engine: ProcessEngine, tmp_path: Path
) -> None:
    """A program that came in after the rest was ended would have outlived the container."""
    launch = a_launch(tmp_path, "/bin/sh", "-c", "echo ready; exec sleep 600")
    await engine.launch(launch)
    await until_logged(launch, "ready")
    running = engine._found.running(launch.id)
    assert running is not None
    folder = tmp_path / "processes" / launch.id
    (folder / "ended.partial").unlink()
    (folder / "ended.partial").mkdir()  # its end cannot be written
    os.kill(running.pid, signal.SIGKILL)
    await eventually(lambda: not tree.is_alive(running.pid, running.pid_started))
    await eventually(lambda: not tree.descendants(running.keeper))
    try:
        assert tree.is_alive(running.keeper, running.keeper_started)
        with pytest.raises(EngineError, match="is ending"):
            await execute(folder, Exec(("/bin/sh", "-c", "setsid sleep 3212 & wait")))
        assert not tree.descendants(running.keeper)
    finally:
        (folder / "ended.partial").rmdir()
    await eventually((folder / "ended.json").exists)
