"""The process engine, cut off between two steps, and with two things at once."""

import asyncio
import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler.engines.base import Condition, EngineError, Status
from scheduler.engines.process import engine as process
from scheduler.engines.process import keeper, tree
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.engines.conftest import next_change
from tests.engines.processes import a_launch, engine, runtime_environment
from tests.support.eventually import eventually, until
from tests.support.running import ended

__all__ = ["engine", "runtime_environment"]


@pytest.mark.parametrize("cut", [("launch.json", "ended.json"), ("ended.json",)])
async def test_removal_that_was_cut_off_stops_no_later_start(
    tmp_path: Path, runtime_environment: RuntimeEnvironment, monkeypatch: pytest.MonkeyPatch, cut: tuple[str, ...]
) -> None:
    """A folder's files are removed in any order."""
    before = ProcessEngine(tmp_path / "processes", runtime_environment)
    await before.start()
    launch = a_launch(tmp_path, "true")
    await before.launch(launch)
    await next_change(before, Condition.ENDED)

    def cut_off(folder: Path, **_: object) -> None:
        for name in cut:
            (folder / name).unlink()

    with monkeypatch.context() as broken:
        broken.setattr("shutil.rmtree", cut_off)
        await before.remove(launch.id)
    await before.close()
    after = ProcessEngine(tmp_path / "processes", runtime_environment)
    await after.start()
    try:
        assert await after.statuses() == []
        await eventually(lambda: not (tmp_path / "processes" / launch.id).exists())
    finally:
        await after.close()


async def test_removal_in_the_middle_of_a_look_is_gone_and_no_fault(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = a_launch(tmp_path, "true")
    await engine.launch(launch)
    await next_change(engine, Condition.ENDED)
    ended, removing, removed = engine._found.ended, threading.Event(), threading.Event()

    def removed_meanwhile(*arguments: Any) -> Status | None:
        if not removing.is_set() and threading.current_thread() is not threading.main_thread():
            removing.set()
            done = asyncio.run_coroutine_threadsafe(engine.remove(launch.id), loop)
            done.result(60)
            removed.set()
        return ended(*arguments)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(engine._found, "ended", removed_meanwhile)
    await engine.statuses()  # in its middle, or in that of a look of the engine's own that is under way
    await eventually(removed.is_set)
    assert engine._changes.known() == []
    assert not (tmp_path / "processes" / launch.id).exists()


@pytest.fixture
def a_keeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@contextmanager
def starting(folder: Path, its: int) -> Iterator[None]:
    """As a keeper leaves the folder between running.json and the exec, which then fails."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    keeper.write_json(folder / "running.json", keeper._identity(its, its))
    yield
    (folder / "running.json").unlink()
    os.close(lock)


async def test_program_that_cannot_be_started_is_never_seen_running(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_keeper: int
) -> None:
    """By a look that began before its launch."""
    look, begun, launched = engine._found.look, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> list[Status]:
        begun.set()
        launched.wait(60)
        return look(*arguments)

    async def failing(folder: Path) -> None:
        with starting(folder, a_keeper):
            launched.set()
            await looking
        raise EngineError("Cannot start it: there is no such program.", code="cannot_start")

    monkeypatch.setattr(engine._found, "look", slow)
    monkeypatch.setattr(process, "_keep", failing)
    looking = asyncio.create_task(engine.statuses())
    await eventually(begun.is_set)
    with pytest.raises(EngineError, match="no such program"):
        await engine.launch(a_launch(tmp_path, "/nowhere/program"))
    assert await looking == []
    assert engine._changes.known() == []


async def test_launch_that_fails_forgets_nothing_while_an_earlier_keeper_is_starting_it(
    tmp_path: Path, engine: ProcessEngine, a_keeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = a_launch(tmp_path, "/nowhere/program")
    folder = tmp_path / "processes" / launch.id
    folder.mkdir()
    forget, about_to = process.forget_unless_begun, threading.Event()

    def and_tell(folder: Path) -> bool:
        about_to.set()
        return forget(folder)

    async def failing(_: Path) -> None:
        raise EngineError("Its keeper failed.")

    monkeypatch.setattr(process, "_keep", failing)
    monkeypatch.setattr(process, "forget_unless_begun", and_tell)
    with starting(folder, a_keeper):
        again = asyncio.create_task(engine.launch(launch))
        await eventually(about_to.is_set)
        again.cancel()
        assert not (await asyncio.wait([again], timeout=0.2))[0]
        assert (folder / "running.json").exists()
    await asyncio.wait([again])
    assert again.cancelled()
    assert not folder.exists()


async def test_launch_that_an_earlier_scheduler_has_under_way_is_waited_for(
    tmp_path: Path, engine: ProcessEngine, a_keeper: int
) -> None:
    launch = a_launch(tmp_path, "/nowhere/program")
    folder = tmp_path / "processes" / launch.id
    folder.mkdir()
    with starting(folder, a_keeper):
        assert await engine.statuses() == []
        again = asyncio.create_task(engine.launch(launch))
        await eventually(lambda: again.done() or (folder / "launch.json").exists())
    with pytest.raises(EngineError, match="No such file"):
        await again
    assert await engine.statuses() == []
    assert not folder.exists()


def test_room_that_is_kept_for_an_end_never_lengthens_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two schedulers launch the same: the second keeps room while the container of the first writes its end."""
    path = tmp_path / "ended.json"
    keeper.keep_room(path)
    fallocate = os.posix_fallocate

    def ended_meanwhile(*arguments: int) -> None:
        keeper.write_json(path, {"exit_code": 0})
        fallocate(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", ended_meanwhile)
    keeper.keep_room(path)
    if not path.exists():
        keeper.write_json(path, {"exit_code": 0})
    assert json.loads(path.read_text()) == {"exit_code": 0}


@pytest.mark.parametrize("torn", [("running.json",), ("ended.json",), ("running.json", "ended.json", "launch.json")])
async def test_files_that_a_power_cut_has_emptied_stop_no_start(
    tmp_path: Path, runtime_environment: RuntimeEnvironment, engine: ProcessEngine, torn: tuple[str, ...]
) -> None:
    """A rename may reach the disk before what was written."""
    launch = a_launch(tmp_path, "true")
    await engine.launch(launch)
    await next_change(engine, Condition.ENDED)
    for name in torn:
        (tmp_path / "processes" / launch.id / name).write_bytes(b"")
    after = ProcessEngine(tmp_path / "processes", runtime_environment)
    await after.start()
    try:

        async def is_ended() -> bool:
            (found,) = await after.statuses()
            return found.condition is Condition.ENDED

        await eventually(is_ended)  # the keeper that had reported the end may live a moment longer
        await after.remove(launch.id)
        assert await after.statuses() == []
    finally:
        await after.close()


async def test_folder_that_nobody_can_look_into_now_is_no_empty_one(
    tmp_path: Path, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Python 3.12 `glob` finds nothing then: all were reported as removed, and killed by the next look."""
    await engine.launch(a_launch(tmp_path, "sleep", "600"))
    look, before = tree.look, resource.getrlimit(resource.RLIMIT_NOFILE)

    def and_then_short() -> tree.Children:
        children = look()
        if threading.current_thread() is threading.main_thread():  # else it is the engine's own look
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))  # less than are open: no more can be
        return children

    monkeypatch.setattr(tree, "look", and_then_short)
    try:
        with pytest.raises(OSError, match="Too many open files"):
            engine._found.look(frozenset())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_process_that_nobody_can_look_at_now_is_not_gone(
    tmp_path: Path, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its container was reported as ended, and it lived on with what it held: nobody could end it any more."""
    script = f"setsid sleep 600 & echo $! > {tmp_path}/child; wait"
    launch = a_launch(tmp_path, "sh", "-c", script)
    await engine.launch(launch)
    child = int(await eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text()))
    await eventually(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
    read, shortages = Path.read_bytes, iter([errno.EMFILE])

    def short(path: Path) -> bytes:
        if str(path) == f"/proc/{child}/environ" and (number := next(shortages, 0)):
            raise OSError(number, os.strerror(number))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", short)
    running = engine._found.running(launch.id)
    assert running is not None
    os.kill(running.keeper, signal.SIGKILL)
    await next_change(engine, Condition.ENDED)
    await eventually(lambda: ended(child))


def test_keeper_of_a_folder_that_was_made_anew_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had waited for the lock of the old one, and both keepers started the program."""
    folder, starts = tmp_path / "container", threading.Event()
    monkeypatch.setattr(keeper, "_start_first", lambda _: starts.set())
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    waiting = threading.Thread(target=keeper._start, args=(folder,))
    waiting.start()
    until(lambda: _opened(folder) == 2)
    folder.rename(tmp_path / "old")
    folder.mkdir()
    os.close(lock)
    waiting.join()
    assert not starts.is_set()


def _opened(folder: Path) -> int:
    links = (Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))
    return sum(link.exists() and link.samefile(folder) for link in links)
