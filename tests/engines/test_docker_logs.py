"""A container's output reaches its log file whole, once, and within its bound, whatever is restarted meanwhile."""

import errno
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from scheduler.engines.base import Condition, EngineError, Launch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.logs import LogCopier, LogFile, parse_stamp
from tests.engines.conftest import Opener, next_change, output_of, removed
from tests.support.eventually import eventually
from web.console.copied import is_whole

Launcher = Callable[..., Launch]
MiB = 1 << 20


@pytest.mark.docker
async def test_restarted_scheduler_neither_loses_nor_repeats_output(
    open_engine: Opener, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    # Until it is asked to end: on a busy machine each start of an engine lasts longer than any number of lines.
    script = "trap 'on=' USR1; on=1; i=0; while [ $on ]; do echo line $i; i=$((i+1)); sleep 0.01; done; echo end"
    launch = a_launch("/bin/sh", "-c", script)
    async with open_engine() as engine:
        engine_id = (await engine.launch(launch)).engine_id
        await eventually(lambda: launch.log_path.exists() and "line 20\n" in launch.log_path.read_text())
    # As if killed between writing the log and noting the position.
    with launch.log_path.open("a") as log:
        log.write("line 2")
    for _ in range(3):
        async with open_engine() as engine:
            size = launch.log_path.stat().st_size
            await eventually(lambda size=size: launch.log_path.stat().st_size > size)
    async with open_engine() as engine:
        docker_api.kill(engine_id, "USR1")
        await eventually(lambda: launch.log_path.read_text().endswith("\nend\n"))
        await engine.kill(engine_id)
        await engine.remove(engine_id)
    *lines, end = launch.log_path.read_text().splitlines()
    assert (lines, end) == ([f"line {number}" for number in range(len(lines))], "end")


@pytest.mark.docker
async def test_long_output_ends_with_an_honest_mark(open_engine: Opener, a_launch: Launcher) -> None:
    launch = a_launch("/bin/sh", "-c", "yes $(printf %01023d 7) | head -n 5000")
    async with open_engine(log_bytes=MiB) as engine:
        await output_of(engine, launch)
        await eventually(lambda: launch.log_path.read_bytes().endswith(b"what follows is not kept]\n"))
    text = launch.log_path.read_text()
    assert text.endswith("\n[gpushare: the output passed 1 MiB; what follows is not kept]\n")
    assert text.index("\n\n[gpushare") + 1 == MiB


@pytest.mark.docker
async def test_lines_longer_than_dockers_messages_stay_whole(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    text = await output_of(docker_engine, a_launch("/bin/sh", "-c", "yes x | head -n 50000 | tr -d '\\n'; echo"))
    assert text == "x" * 50000 + "\n"


@pytest.mark.docker
async def test_last_messages_that_a_followed_stream_leaves_out_are_copied_too(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = docker_engine._client.api
    logs = api.logs

    def hasty(*arguments: Any, **options: Any) -> Any:
        stream = logs(*arguments, **options)
        if options["follow"]:
            stream._stream = itertools.islice(stream._stream, 1)
        return stream

    monkeypatch.setattr(api, "logs", hasty)
    launch = a_launch("/bin/sh", "-c", "echo one; echo two >&2; echo three")
    assert sorted((await output_of(docker_engine, launch)).split()) == ["one", "three", "two"]


@pytest.mark.docker
async def test_who_is_launched_where_no_thread_can_be_started_runs_and_is_copied_later(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        launch = a_launch("/bin/sh", "-c", "echo line; sleep 600")
        engine_id = (await docker_engine.launch(launch)).engine_id
    await docker_engine.statuses()
    await eventually(lambda: launch.log_path.exists() and launch.log_path.read_text() == "line\n")
    await docker_engine.kill(engine_id)
    await docker_engine.remove(engine_id)


def written(path: Path, *messages: tuple[int, bytes]) -> bytes:
    """What the log holds after a copier has come and gone."""
    with LogFile(path, MiB) as log:
        assert all(log.add(*message) for message in messages)
    return path.read_bytes()


def test_known_messages_are_passed_by_even_where_stamps_run_backwards(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = [(10, b"a"), (12, b"b"), (11, b"c")]
    assert written(path, *first) == b"abc"
    assert written(path, *first, (9, b"d"), (13, b"e")) == b"abcde"


def test_pieces_of_one_line_bear_one_stamp(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert written(path, (10, b"a"), (20, b"b1"), (20, b"b2")) == b"ab1b2"
    assert written(path, (20, b"b1"), (20, b"b2"), (20, b"b3")) == b"ab1b2b3"


def test_emptied_log_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    written(path, (10, b"a"), (11, b"b"))
    path.write_bytes(b"")
    assert written(path, (10, b"a"), (11, b"b")) == b"ab"


def test_a_complete_log_that_lost_its_tail_in_a_power_cut_is_copied_again(tmp_path: Path) -> None:
    """The position was on the disk, the tail was not: the log was emptied and said to be whole."""
    path = tmp_path / "log"
    with LogFile(path, MiB) as log:
        log.add(10, b"first\n")
        log.add(11, b"last\n")
        log.finish()
    os.truncate(path, 8)
    with LogFile(path, MiB) as log:
        assert not log.complete
        assert not is_whole(path), "also for a reader, and after a kill at this point"
        assert log.add(10, b"first\n")
        assert log.add(11, b"last\n")
        log.finish()
    assert is_whole(path)
    assert path.read_bytes() == b"first\nlast\n"


def test_a_kill_after_the_first_write_to_an_emptied_log_leaves_no_old_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    written(path, (10, b"a"), (11, b"b"))
    path.write_bytes(b"")
    with monkeypatch.context() as killed, LogFile(path, MiB) as log:
        killed.setattr(LogFile, "_save", lambda _: None)
        log.add(12, b"longer than before")
    assert written(path, (12, b"longer than before")) == b"longer than before"


@pytest.mark.parametrize(
    ("text", "stamp"),
    [("1970-01-01T00:00:01.000000002Z", 1_000_000_002), ("1970-01-01T00:01:00Z", 60 * 10**9),
     ("1970-01-01T00:00:00.5Z", 500_000_000)],
)  # fmt: skip
def test_stamps_keep_their_nanoseconds(text: str, stamp: int) -> None:
    assert parse_stamp(text) == stamp


@pytest.mark.docker
async def test_nothing_is_removed_before_its_output_is_copied(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a busy copier had still with Docker went with the container, without a word."""
    add = LogFile.add

    def slowly(file: LogFile, stamp: int, text: bytes) -> bool:
        time.sleep(0.01)
        return add(file, stamp, text)

    monkeypatch.setattr(LogFile, "add", slowly)
    launch = a_launch("/bin/sh", "-c", "seq 500")
    engine_id = (await docker_engine.launch(launch)).engine_id
    await next_change(docker_engine, Condition.ENDED)
    await removed(docker_engine, engine_id)
    assert launch.log_path.read_text().split() == [str(number) for number in range(1, 501)]


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No output is copied until it is set."""
    run, go_on = LogCopier._run, threading.Event()

    def late(copier: LogCopier) -> None:
        go_on.wait()
        run(copier)

    monkeypatch.setattr(LogCopier, "_run", late)
    return go_on


@pytest.mark.docker
async def test_an_end_that_is_announced_before_its_output_is_copied_leaves_the_log_marked_as_not_whole(
    docker_engine: DockerEngine, a_launch: Launcher, go_on: threading.Event
) -> None:
    """Who follows the log goes on until it is (tests/web/test_logs.py)."""
    launch = a_launch("/bin/sh", "-c", "echo last words")
    engine_id = (await docker_engine.launch(launch)).engine_id
    await next_change(docker_engine, Condition.ENDED)
    assert not is_whole(launch.log_path)
    go_on.set()
    await eventually(lambda: is_whole(launch.log_path))
    assert launch.log_path.read_text() == "last words\n"
    await removed(docker_engine, engine_id)


@pytest.mark.docker
async def test_the_log_of_a_container_that_was_removed_by_others_is_whole(
    docker_engine: DockerEngine, a_launch: Launcher, docker_api: docker.APIClient, go_on: threading.Event
) -> None:
    launch = a_launch("/bin/sh", "-c", "echo last words")
    engine_id = (await docker_engine.launch(launch)).engine_id
    await next_change(docker_engine, Condition.ENDED)
    docker_api.remove_container(engine_id)
    go_on.set()
    await eventually(lambda: is_whole(launch.log_path))


@pytest.mark.docker
async def test_what_a_host_has_no_room_to_copy_is_kept_with_docker_until_it_has(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(LogFile, "add", full)
        launch = a_launch("/bin/sh", "-c", "echo kept")
        engine_id = (await docker_engine.launch(launch)).engine_id
        await next_change(docker_engine, Condition.ENDED)
        with pytest.raises(EngineError, match="still being copied") as caught:
            await docker_engine.remove(engine_id)
    assert (caught.value.code, caught.value.status) == ("output_left", 503)
    await removed(docker_engine, engine_id)
    assert launch.log_path.read_text() == "kept\n"


def test_a_log_its_place_and_its_folder_can_be_read_by_their_group_whatever_the_umask(tmp_path: Path) -> None:
    """The web side is another user of that group."""
    log = tmp_path / "logs" / "one.log"
    before = os.umask(0o077)
    try:
        with LogFile(log, 1 << 20):
            modes = {path.name: path.stat().st_mode & 0o777 for path in (*log.parent.iterdir(), log.parent)}
        log.chmod(0o600)  # as it was made before
        with LogFile(log, 1 << 20):
            assert log.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)
    assert modes == {"one.log": 0o640, "one.log.position": 0o640, "logs": 0o750}
