"""The process engine, with real processes: starting, pausing and ending them, and finding them again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.engines.base import Condition, EngineError, Launch, Sighting
from scheduler.engines.outfit import Outfit, Simulation
from scheduler.engines.process import engine as process
from scheduler.engines.process import tree
from scheduler.engines.process.engine import ProcessEngine, _keep
from tests.support.eventually import eventually


@pytest.fixture
def outfit(tmp_path: Path, empty_shim: Path) -> Outfit:
    return Outfit(empty_shim, Simulation(tmp_path / "sim", tmp_path / "card" / "state"))


@pytest.fixture
async def engine(tmp_path: Path, outfit: Outfit) -> AsyncIterator[ProcessEngine]:
    engine = ProcessEngine(tmp_path / "processes", outfit)
    await engine.start()
    yield engine
    for sighting in await engine.sightings():
        await engine.kill(sighting.engine_id)
    await engine.close()


def a_launch(tmp_path: Path, *command: str, **fields: object) -> Launch:
    id_ = str(uuid.uuid4())
    settings: dict[str, object] = {
        "id": id_,
        "name": "one",
        "image": "local",
        "command": command,
        "gpus": ["GPU-1", "GPU-2"],
        "socket_dir": tmp_path / "sockets" / id_,
        "log_path": tmp_path / "logs" / f"{id_}.log",
    }
    return Launch(**{**settings, **fields})


async def next_change(engine: ProcessEngine, condition: Condition) -> Sighting:
    async with asyncio.timeout(10):
        async for sighting in engine.changes():
            if sighting.condition is condition:
                return sighting
    raise AssertionError("the stream ended")


async def until_logged(launch: Launch, text: str) -> str:
    await eventually(lambda: launch.log_path.exists() and text in launch.log_path.read_text())
    return launch.log_path.read_text()


def states_of(engine: ProcessEngine, launch: Launch) -> list[str]:
    running = engine._running(launch.id)
    assert running is not None
    return [each.state for each in tree.descendants(running.keeper)]


def pids_of(engine: ProcessEngine, launch: Launch) -> list[int]:
    running = engine._running(launch.id)
    assert running is not None
    return [each.pid for each in tree.descendants(running.keeper)]


async def test_output_and_exit_code_are_the_programs_own(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(tmp_path, "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    sighting = await engine.launch(launch)
    assert sighting.started_at is not None
    ended = await next_change(engine, Condition.ENDED)
    assert (ended.id, ended.exit_code, ended.reason) == (launch.id, 7, "")
    assert launch.log_path.read_text() == "out\nerr\n"


async def test_environment_is_the_launchs_and_ours_and_nothing_else(
    engine: ProcessEngine, tmp_path: Path, outfit: Outfit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_SECRET_KEY", "not for programs")
    given = {"GPUSHARE_MEMORY_LIMIT": "1024", "MINE": "yes", "LD_PRELOAD": "/evil.so", "NVIDIA_VISIBLE_DEVICES": "all"}
    launch = a_launch(tmp_path, "/usr/bin/env", environment=given)
    await engine.launch(launch)
    await next_change(engine, Condition.ENDED)
    seen = dict(line.split("=", 1) for line in launch.log_path.read_text().splitlines() if "=" in line)
    assert outfit.simulation is not None
    assert {name: seen[name] for name in seen if name.startswith(("GPUSHARE", "CUDA", "NVIDIA", "LD_", "MINE"))} == {
        "GPUSHARE_MEMORY_LIMIT": "1024",
        "GPUSHARE_SOCKET": str(launch.socket_dir / "gpushare.sock"),
        "GPUSHARE_SIM": str(outfit.simulation.state),
        "MINE": "yes",
        "LD_PRELOAD": str(outfit.shim),
        "LD_LIBRARY_PATH": str(outfit.simulation.libraries),
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
        "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2",
    }


async def test_signal_shows_as_128_and_its_number(engine: ProcessEngine, tmp_path: Path) -> None:
    await engine.launch(a_launch(tmp_path, "/bin/sh", "-c", "kill -SEGV $$"))
    assert (await next_change(engine, Condition.ENDED)).exit_code == 128 + signal.SIGSEGV


async def test_program_that_cannot_be_started_leaves_nothing(engine: ProcessEngine, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"/no/such: No such file") as caught:
        await engine.launch(a_launch(tmp_path, "/no/such"))
    assert (caught.value.code, caught.value.field, caught.value.status) == ("cannot_start", "command", 400)
    assert await engine.sightings() == []
    assert list((tmp_path / "processes").iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"image": "debian"}, "image"), ({"command": ()}, "command"), ({"memory": 1 << 20}, "memory"),
     ({"volumes": ["/a:/b"]}, "volumes"), ({"ports": ["80:80"]}, "ports"), ({"cpus": 1.0}, "cpus"),
     ({"interactive": True}, "interactive"), ({"tty": True}, "tty")],
)  # fmt: skip
async def test_what_processes_cannot_have_is_refused(
    engine: ProcessEngine, tmp_path: Path, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(EngineError) as caught:
        await engine.launch(a_launch(tmp_path, *(["true"] if field != "command" else []), **fields))
    assert caught.value.field == field


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
    assert await engine.sightings() == []


async def test_same_launch_again_is_the_same_container(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(tmp_path, "sleep", "60")
    first = await engine.launch(launch)
    assert await engine.launch(launch) == first
    assert len(pids_of(engine, launch)) == 1


TWO = ("/bin/sh", "-c", "setsid sleep 60 & sleep 60 & echo ready; wait")


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


async def test_stop_behind_our_back_is_seen_within_two_seconds(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(tmp_path, "sleep", "60")
    await engine.launch(launch)
    os.kill(pids_of(engine, launch)[0], signal.SIGSTOP)
    async with asyncio.timeout(2):
        await next_change(engine, Condition.PAUSED)


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
    assert not [pid for pid in pids if (found := tree.stat(pid)) and found.living]
    assert (await next_change(engine, Condition.ENDED)).exit_code == 128 + signal.SIGKILL
    await engine.kill(launch.id)


async def test_kill_with_grace_lets_a_program_end_by_itself(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(
        tmp_path, "/bin/sh", "-c", "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    )
    await engine.launch(launch)
    await until_logged(launch, "ready")
    await engine.pause(launch.id)
    await engine.kill(launch.id, grace=10)
    assert (await next_change(engine, Condition.ENDED)).exit_code == 3
    assert "bye" in launch.log_path.read_text()


async def test_sigterm_to_a_keeper_is_its_programs(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(tmp_path, "sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    await engine.launch(launch)
    await until_logged(launch, "ready")
    os.kill(engine._living(launch.id).keeper, signal.SIGTERM)
    assert (await next_change(engine, Condition.ENDED)).exit_code == 3


async def test_what_outlives_the_first_process_is_ended_with_it(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(tmp_path, "/bin/sh", "-c", "setsid sleep 60 & echo $!; exit 0")
    await engine.launch(launch)
    await next_change(engine, Condition.ENDED)
    orphan = int(launch.log_path.read_text())
    assert (found := tree.stat(orphan)) is None or not found.living


async def test_process_is_owned_by_its_container_only(engine: ProcessEngine, tmp_path: Path) -> None:
    one, two = a_launch(tmp_path, *TWO), a_launch(tmp_path, "sleep", "60")
    await engine.launch(one)
    await engine.launch(two)
    await until_logged(one, "ready")
    assert all(engine.owns(one.id, pid) and not engine.owns(two.id, pid) for pid in pids_of(engine, one))
    assert not engine.owns(one.id, os.getpid())
    assert not engine.owns(one.id, 1)


async def test_remove_forgets_an_ended_container_and_refuses_a_living_one(
    engine: ProcessEngine, tmp_path: Path
) -> None:
    launch = a_launch(tmp_path, "sleep", "60")
    await engine.launch(launch)
    with pytest.raises(EngineError, match="still runs"):
        await engine.remove(launch.id)
    await engine.kill(launch.id)
    await engine.remove(launch.id)
    await engine.remove(launch.id)
    assert await engine.sightings() == []
    assert (await next_change(engine, Condition.GONE)).id == launch.id
    with pytest.raises(EngineError, match="has ended"):
        await engine.pause(launch.id)


SCHEDULER = """
import asyncio, json, sys
from pathlib import Path
from scheduler.engines.base import Launch
from scheduler.engines.outfit import Outfit
from scheduler.engines.process.engine import ProcessEngine
async def main(home, launches):
    engine = ProcessEngine(Path(home), Outfit(Path("/nowhere.so")))
    await engine.start()
    for id_, log, script in launches:
        await engine.launch(Launch(id_, id_, "local", ["/bin/sh", "-c", script], [], Path(home), Path(log)))
    print("launched", flush=True)
    await asyncio.sleep(60)
asyncio.run(main(*json.loads(sys.argv[1])))
"""


async def test_scheduler_killed_and_restarted_finds_the_living_and_the_ended(tmp_path: Path, outfit: Outfit) -> None:
    home = tmp_path / "processes"
    go = tmp_path / "go"
    scripts = {"living": "sleep 60", "ending": f"while [ ! -e {go} ]; do sleep 0.02; done; exit 5"}
    launches = [[id_, str(tmp_path / f"{id_}.log"), script] for id_, script in scripts.items()]
    scheduler = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCHEDULER, json.dumps([str(home), launches]), stdout=asyncio.subprocess.PIPE
    )
    assert scheduler.stdout is not None
    assert await scheduler.stdout.readline() == b"launched\n"
    scheduler.kill()
    await scheduler.wait()
    go.touch()
    await eventually((home / "ending" / "ended.json").exists)

    engine = ProcessEngine(home, outfit)
    await engine.start()
    try:
        seen = {sighting.id: sighting for sighting in await engine.sightings()}
        assert seen["living"].condition is Condition.RUNNING
        assert (seen["ending"].condition, seen["ending"].exit_code) == (Condition.ENDED, 5)
        await engine.kill("living")
        while (await next_change(engine, Condition.ENDED)).id != "living":
            pass
    finally:
        await engine.kill("living")
        await engine.close()


async def test_nothing_of_a_container_outlives_its_keeper(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(tmp_path, "/bin/sh", "-c", "setsid sleep 600 & (setsid sleep 600 & exit) & echo ready; wait")
    await engine.launch(launch)
    await until_logged(launch, "ready")
    await eventually(lambda: len(pids_of(engine, launch)) >= 3)
    left = [(pid, start.started) for pid in pids_of(engine, launch) if (start := tree.stat(pid))]
    running = engine._running(launch.id)
    assert running is not None
    os.kill(running.keeper, signal.SIGKILL)
    ended = await next_change(engine, Condition.ENDED)
    assert (ended.exit_code, "keeper" in ended.reason) == (None, True)
    assert not [pid for pid, started in left if tree.is_alive(pid, started)]
    await engine.kill(launch.id)


async def test_nothing_of_a_container_outlives_a_keeper_that_died_while_nobody_looked(
    engine: ProcessEngine, tmp_path: Path, outfit: Outfit
) -> None:
    launch = a_launch(tmp_path, "/bin/sh", "-c", "setsid sleep 600 & echo ready; wait")
    await engine.launch(launch)
    await until_logged(launch, "ready")
    await eventually(lambda: len(pids_of(engine, launch)) >= 2)
    left = [(pid, start.started) for pid in pids_of(engine, launch) if (start := tree.stat(pid))]
    running = engine._running(launch.id)
    assert running is not None
    await engine.close()
    os.kill(running.keeper, signal.SIGKILL)
    await eventually(lambda: not running.is_kept())
    after = ProcessEngine(tmp_path / "processes", outfit)
    await after.start()
    try:
        await after.kill(launch.id)
        assert not [pid for pid, started in left if tree.is_alive(pid, started)]
        assert [sighting.condition for sighting in await after.sightings()] == [Condition.ENDED]
    finally:
        await after.close()


async def test_container_that_is_launched_during_a_look_is_not_taken_for_gone(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, begun, go_on = engine._look, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> list[Sighting]:
        found = look(*arguments)
        begun.set()
        go_on.wait(10)
        return found

    monkeypatch.setattr(engine, "_look", slow)
    await eventually(begun.is_set)
    launch = a_launch(tmp_path, "sleep", "60")
    await engine.launch(launch)
    begun.clear()
    go_on.set()
    await eventually(begun.is_set)  # the first look is through
    await engine.kill(launch.id)
    told = []
    async with asyncio.timeout(10):
        async for sighting in engine.changes():
            told.append(sighting.condition)
            if sighting.condition is not Condition.RUNNING:
                break
    assert told == [Condition.RUNNING, Condition.ENDED]


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
    launch = a_launch(tmp_path, "/bin/sh", "-c", "echo ran; exec sleep 60")
    await engine.launch(launch)
    await until_logged(launch, "ran")
    assert launch.log_path.read_text() == "ran\n"
    assert len(pids_of(engine, launch)) == 1


async def test_folder_of_a_launch_that_was_cut_off_does_not_stay(engine: ProcessEngine, tmp_path: Path) -> None:
    folder = tmp_path / "processes" / "cut-off"
    folder.mkdir()
    await eventually(lambda: not folder.exists())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 12)):
            pass


async def test_full_disk_loses_no_exit_code_and_refuses_a_launch_in_words(
    tmp_path: Path, outfit: Outfit, small_disk: Path
) -> None:
    engine = ProcessEngine(small_disk / "processes", outfit)
    await engine.start()
    try:
        go = tmp_path / "go"
        launch = a_launch(tmp_path, "/bin/sh", "-c", f"while [ ! -e {go} ]; do sleep 0.02; done; exit 5")
        await engine.launch(launch)
        fill(small_disk)
        go.touch()
        ended = await next_change(engine, Condition.ENDED)
        assert (ended.exit_code, ended.reason) == (5, "")
        with pytest.raises(EngineError, match="disk is full") as caught:
            await engine.launch(a_launch(tmp_path, "true"))
        assert (caught.value.code, caught.value.status) == ("disk_full", 503)
        assert [sighting.id for sighting in await engine.sightings()] == [launch.id]
    finally:
        await engine.close()


async def test_program_does_not_outlive_its_keeper(engine: ProcessEngine, tmp_path: Path) -> None:
    launch = a_launch(tmp_path, "sleep", "60")
    await engine.launch(launch)
    running = engine._running(launch.id)
    assert running is not None
    os.kill(running.keeper, signal.SIGKILL)
    ended = await next_change(engine, Condition.ENDED)
    assert (ended.exit_code, "keeper" in ended.reason) == (None, True)
    await eventually(lambda: not tree.is_alive(running.pid, running.pid_started))
