"""What every engine does alike: the definition of an engine, for those that there are and for the next one.

A new engine passes these tests unchanged: give `KINDS` its name, and `opened` a way to open it. What an engine cannot
do it refuses by the name of the field; it never ignores it.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import MISSING, fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import pytest

from scheduler.engines.base import Condition, Engine, EngineError, Launch, Status
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.process.taken import IMAGE as LOCAL
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.engines.conftest import changed_to, empty, leaks_sockets, started, until_logged
from tests.support.eventually import eventually
from tests.support.inprocess.cards import Cards
from tests.support.inprocess.driver import Driver
from tests.support.inprocess.engine import InProcessEngine
from tests.support.inprocess.kernel import Kernel
from tests.support.inprocess.process import Machine

T = TypeVar("T")
pytestmark = leaks_sockets
KINDS = ["process", "in-process", pytest.param("docker", marks=pytest.mark.docker)]
Opener = Callable[[], AbstractAsyncContextManager[Engine]]
Launcher = Callable[..., Launch]
FOREVER = ("/bin/sh", "-c", "trap exit TERM; while :; do sleep 0.05; done")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(kind: str, tmp_path: Path, empty_shim: Path, request: pytest.FixtureRequest) -> Opener:
    """Opens a started engine; opened again, it is that of a restarted scheduler."""
    if kind == "process":
        return lambda: started(ProcessEngine(tmp_path / "processes", RuntimeEnvironment(empty_shim)))
    if kind == "in-process":
        engine = request.getfixturevalue("engine_of_coroutines")
        return lambda: started(engine)
    opens: Opener = request.getfixturevalue("open_engine")
    return opens


@pytest.fixture
async def engine_of_coroutines(tmp_path: Path) -> InProcessEngine:
    """That of tests; what only a process can show is not asked of it."""
    kernel = Kernel(tmp_path / "threads")
    driver = Driver(kernel, print)
    driver.cards = Cards("sim:1x5GiB", driver.stands)
    return InProcessEngine(Machine(kernel, driver, driver.cards))


@pytest.fixture
def processes(kind: str) -> None:
    if kind == "in-process":
        pytest.skip("a coroutine is no process of the host")


@pytest.fixture
async def engine(opened: Opener) -> AsyncIterator[Engine]:
    async with opened() as engine:
        yield engine
        await empty(engine)


@pytest.fixture
def a_launch(kind: str, a_launch: Launcher) -> Launcher:
    return partial(a_launch, image=LOCAL) if kind != "docker" else a_launch


async def tried(call: Awaitable[T]) -> T | EngineError:
    try:
        return await call
    except EngineError as error:
        return error


async def found(engine: Engine, id_: str) -> Status | None:
    return next((status for status in await engine.statuses() if status.id == id_), None)


# ---- the start ------------------------------------------------------------------------------------------------------


async def test_it_says_its_name_and_that_it_answers(engine: Engine, kind: str) -> None:
    assert (engine.name, engine.away) == ("docker" if kind == "docker" else "process", "")


async def test_what_was_launched_runs_and_is_seen(engine: Engine, a_launch: Launcher) -> None:
    before = time.time()
    launch = a_launch(*FOREVER)
    status = await engine.launch(launch)
    assert (status.id, status.condition, status.exit_code) == (launch.id, Condition.RUNNING, None)
    seen = await found(engine, launch.id)
    assert seen is not None
    assert (seen.engine_id, seen.condition) == (status.engine_id, Condition.RUNNING)
    assert seen.started_at is not None
    assert before - 1 <= seen.started_at <= time.time() + 1


async def test_output_goes_to_the_log_that_was_given(engine: Engine, a_launch: Launcher) -> None:
    launch = a_launch("/bin/sh", "-c", "echo out; echo err >&2")
    await engine.launch(launch)
    await until_logged(launch, "out\n")
    await until_logged(launch, "err\n")


async def test_environment_is_what_was_given_and_never_what_decides_about_gpus(
    engine: Engine, a_launch: Launcher
) -> None:
    given = {"MINE": "yes", "GPUSHARE_MEMORY_LIMIT": "1024", "LD_PRELOAD": "/evil.so", "CUDA_VISIBLE_DEVICES": "9"}
    launch = a_launch("/bin/sh", "-c", 'echo "$MINE $GPUSHARE_MEMORY_LIMIT $CUDA_VISIBLE_DEVICES."')
    await engine.launch(replace(launch, environment=given))
    await until_logged(launch, "yes 1024 .\n")


async def test_same_launch_again_is_the_same_container_even_once_it_has_ended(
    engine: Engine, a_launch: Launcher
) -> None:
    launch = a_launch(*FOREVER)
    first = await engine.launch(launch)
    assert (await engine.launch(launch)).engine_id == first.engine_id
    await engine.kill(first.engine_id)
    again = await engine.launch(launch)
    assert (again.engine_id, again.condition) == (first.engine_id, Condition.ENDED)
    assert len(await engine.statuses()) == 1


async def test_unknown_image_is_refused_and_leaves_nothing(engine: Engine, a_launch: Launcher) -> None:
    for refused in (engine.image_labels("nobody/has:this"), engine.launch(a_launch("true", image="nobody/has:this"))):
        with pytest.raises(EngineError) as caught:
            await refused
        assert caught.value.field == "image"
        # Docker asks the registry, which cannot be reached from everywhere.
        assert (caught.value.code, caught.value.status) in (("unknown_image", 404), ("registry_away", 503))
    assert await engine.statuses() == []


async def test_program_that_is_not_there_is_refused_and_leaves_nothing(engine: Engine, a_launch: Launcher) -> None:
    with pytest.raises(EngineError, match="/no/such") as caught:
        await engine.launch(a_launch("/no/such"))
    assert (caught.value.code, caught.value.field, caught.value.status) == ("cannot_start", "command", 400)
    assert await engine.statuses() == []


OPTIONS: dict[str, object] = {
    "memory": 64 << 20, "cpus": 0.5, "volumes": ["gpushare-conformance:/data"], "ports": ["127.0.0.1:0:80"],
    "interactive": True, "tty": True, "shm_size": 64 << 20, "working_dir": "/tmp",
    "user": "1000:1000", "init": False,
}  # fmt: skip


def test_every_field_of_a_launch_is_asked_about() -> None:
    optional = {each.name for each in fields(Launch) if each.default is not MISSING}
    assert OPTIONS.keys() == optional - {"owner"}  # of volumes; no program sees it


@pytest.mark.parametrize("field", OPTIONS)
async def test_what_can_be_asked_for_is_done_or_refused_by_name(
    engine: Engine, kind: str, a_launch: Launcher, field: str
) -> None:
    if kind == "docker" and field == "ports":
        pytest.skip("the tests' Docker engine has no network to publish ports from")
    answer = await tried(engine.launch(a_launch("sleep", "600", **{field: OPTIONS[field]})))
    if isinstance(answer, EngineError):
        assert (answer.code, answer.status, answer.field) == ("not_supported", 400, field)
        assert await engine.statuses() == []
    else:
        assert answer.condition is Condition.RUNNING


async def test_console_shows_what_is_typed_or_there_is_none(engine: Engine, a_launch: Launcher) -> None:
    status = await tried(engine.launch(a_launch("cat", interactive=True)))
    if isinstance(status, EngineError):
        assert (status.code, status.field) == ("not_supported", "interactive")
        refused = await tried(engine.attach((await engine.launch(a_launch(*FOREVER))).engine_id))
        assert isinstance(refused, EngineError)
        assert refused.code == "not_supported"
        return
    console = await engine.attach(status.engine_id)
    try:
        async with asyncio.timeout(60):
            await console.write(b"hello\n")
            _, data = await console.read()
            assert data == b"hello\n"
            console.end_input()
            assert (await console.read())[1] == b""
    finally:
        await console.close()
    assert (await changed_to(engine, status.id, Condition.ENDED)).exit_code == 0


# ---- pauses and the end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 7])
async def test_end_is_reported_with_its_exit_code_and_time(engine: Engine, a_launch: Launcher, code: int) -> None:
    launch = a_launch("/bin/sh", "-c", f"exit {code}")
    await engine.launch(launch)
    ended = await changed_to(engine, launch.id, Condition.ENDED)
    assert (ended.exit_code, ended.reason) == (code, "")
    assert ended.started_at is not None
    assert ended.finished_at is not None
    assert ended.started_at <= ended.finished_at <= time.time() + 1
    assert await found(engine, launch.id) == ended


async def test_pause_and_resume_are_reported_in_order_and_may_be_repeated(engine: Engine, a_launch: Launcher) -> None:
    launch = a_launch(*FOREVER)
    engine_id = (await engine.launch(launch)).engine_id
    for act, condition in ((engine.pause, Condition.PAUSED), (engine.resume, Condition.RUNNING)):
        await act(engine_id)
        await act(engine_id)
        seen = await found(engine, launch.id)
        assert seen is not None
        assert seen.condition is condition
    await engine.kill(engine_id)
    await engine.remove(engine_id)
    conditions = []
    async with asyncio.timeout(60):
        async for status in engine.changes():
            conditions.append(status.condition)
            if status.condition is Condition.GONE:
                break
    assert [condition for condition, _ in groupby(conditions)] == [
        Condition.RUNNING, Condition.PAUSED, Condition.RUNNING, Condition.ENDED, Condition.GONE,
    ]  # fmt: skip


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
@pytest.mark.parametrize("grace", [0.0, 0.3])
async def test_kill_ends_who_is_deaf_and_may_be_repeated(
    engine: Engine, a_launch: Launcher, paused: bool, grace: float
) -> None:
    launch = a_launch("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    engine_id = (await engine.launch(launch)).engine_id
    await until_logged(launch, "ready")
    if paused:
        await engine.pause(engine_id)
    await asyncio.gather(engine.kill(engine_id, grace=grace), engine.kill(engine_id))  # two at once, too
    await engine.kill(engine_id, grace=grace)
    seen = await found(engine, launch.id)
    assert seen is not None
    assert (seen.condition, seen.exit_code) == (Condition.ENDED, 137)


async def test_kill_with_grace_lets_a_paused_program_end_by_itself(engine: Engine, a_launch: Launcher) -> None:
    script = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    launch = a_launch("/bin/sh", "-c", script)
    engine_id = (await engine.launch(launch)).engine_id
    await until_logged(launch, "ready")
    await engine.pause(engine_id)
    await engine.kill(engine_id, grace=30)
    assert (await changed_to(engine, launch.id, Condition.ENDED)).exit_code == 3
    await until_logged(launch, "bye")


@pytest.mark.usefixtures("processes")
async def test_what_the_first_process_leaves_ends_with_it(engine: Engine, a_launch: Launcher) -> None:
    seconds = _unique()
    launch = a_launch("/bin/sh", "-c", f"setsid sleep {seconds} & exit 0")
    await engine.launch(launch)
    await changed_to(engine, launch.id, Condition.ENDED)
    await eventually(lambda: not _pids(seconds))


async def test_what_has_ended_cannot_be_paused_nor_what_is_gone(engine: Engine, a_launch: Launcher) -> None:
    launch = a_launch("true")
    engine_id = (await engine.launch(launch)).engine_id
    await changed_to(engine, launch.id, Condition.ENDED)
    for _ in ("ended", "gone"):
        for act in (engine.pause, engine.resume):
            with pytest.raises(EngineError, match="has ended") as caught:
                await act(engine_id)
            assert caught.value.code == "not_running"
        await engine.kill(engine_id)
        await engine.remove(engine_id)
    assert await engine.statuses() == []


async def test_remove_refuses_the_living_and_forgets_the_ended(engine: Engine, a_launch: Launcher) -> None:
    launch = a_launch(*FOREVER)
    engine_id = (await engine.launch(launch)).engine_id
    with pytest.raises(EngineError, match="still runs") as caught:
        await engine.remove(engine_id)
    assert caught.value.code == "still_running"
    seen = await found(engine, launch.id)
    assert seen is not None
    assert seen.condition is Condition.RUNNING
    await engine.kill(engine_id)
    await engine.remove(engine_id)
    assert await found(engine, launch.id) is None
    assert (await changed_to(engine, launch.id, Condition.GONE)).engine_id == engine_id


# ---- what it knows --------------------------------------------------------------------------------------------------


def _unique() -> str:
    """Seconds to sleep that nobody else sleeps, to find the process by."""
    return str(600_000 + secrets.randbelow(10**8))


def _pids(argument: str) -> list[int]:
    """Host pids of living `sleep` with this argument."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 1 and words[0].endswith(b"sleep") and words[1] == argument.encode():
            pids.append(int(path.parent.name))
    return pids


@pytest.mark.usefixtures("processes")
async def test_process_belongs_to_its_container_only(engine: Engine, a_launch: Launcher) -> None:
    one, two = _unique(), _unique()
    first, second = [
        (await engine.launch(a_launch("/bin/sh", "-c", f"sleep {each}; true"))).engine_id for each in (one, two)
    ]
    await eventually(lambda: _pids(one) and _pids(two))
    await engine.statuses()
    for pid in _pids(one):
        assert engine.owns(first, pid)
        assert not engine.owns(second, pid)
    for stranger in (1, os.getpid(), 2**22 + 1):
        assert not engine.owns(first, stranger)
    assert not engine.owns("no-such-container", _pids(one)[0])


async def test_containers_that_are_launched_while_it_looks_are_not_taken_for_gone(
    engine: Engine, a_launch: Launcher
) -> None:
    stop = asyncio.Event()

    async def look() -> None:
        while not stop.is_set():
            await engine.statuses()

    looking = [asyncio.create_task(look()) for _ in range(3)]
    launches = [a_launch(*FOREVER) for _ in range(8)]
    await asyncio.gather(*(engine.launch(launch) for launch in launches))
    stop.set()
    await asyncio.gather(*looking)
    await engine.statuses()
    last = a_launch("true")
    await engine.launch(last)
    async with asyncio.timeout(60):
        async for status in engine.changes():
            assert status.condition is not Condition.GONE
            if (status.id, status.condition) == (last.id, Condition.ENDED):
                break
    assert {status.id for status in await engine.statuses()} == {each.id for each in (*launches, last)}


async def test_restarted_scheduler_finds_the_living_the_paused_and_the_ended(
    opened: Opener, a_launch: Launcher, tmp_path: Path
) -> None:
    living, paused = a_launch(*FOREVER), a_launch(*FOREVER)
    # Ends by itself while nobody looks.
    ending = a_launch("/bin/sh", "-c", "echo ready; sleep 1; exit 5")
    async with opened() as before:
        ids = {launch.id: (await before.launch(launch)).engine_id for launch in (living, paused, ending)}
        await before.pause(ids[paused.id])
    await asyncio.sleep(1.5)  # the container's own second: nobody of ours is there to see it
    async with opened() as after:
        seen = {status.id: status for status in await after.statuses()}
        assert {id_: status.engine_id for id_, status in seen.items()} == ids
        assert seen[living.id].condition is Condition.RUNNING
        assert seen[paused.id].condition is Condition.PAUSED
        ended = seen[ending.id]
        if ended.condition is Condition.RUNNING:
            ended = await changed_to(after, ending.id, Condition.ENDED)
        assert ended.exit_code == 5
        await after.resume(ids[paused.id])
        await after.kill(ids[living.id])
        assert (await changed_to(after, living.id, Condition.ENDED)).exit_code == 137
        for engine_id in ids.values():
            await after.kill(engine_id)
            await after.remove(engine_id)


async def test_changes_end_when_it_is_closed(opened: Opener) -> None:
    async with opened() as engine:
        stream = engine.changes()
    async with asyncio.timeout(60):
        assert [status async for status in stream] == []


@pytest.mark.usefixtures("processes")
async def test_it_tells_what_a_container_uses_of_the_host(engine: Engine, a_launch: Launcher) -> None:
    """One that computes, and holds some RAM; its child has ended and counts all the same."""
    resting = await engine.launch(a_launch("sleep", "600"))
    work = "seq 1 300000 | wc -l; echo worked; while :; do :; done"
    busy = await engine.launch(launch := a_launch("/bin/sh", "-c", work))
    await until_logged(launch, "worked\n")
    ids = [resting.engine_id, busy.engine_id, "not-one-of-ours"]

    def works() -> bool:
        found = engine.uses(ids)
        assert set(found) <= {resting.engine_id, busy.engine_id}
        return busy.engine_id in found and found[busy.engine_id].processor >= 0.5

    await eventually(lambda: asyncio.to_thread(works))
    found = engine.uses(ids)
    assert found[busy.engine_id].processor > found[resting.engine_id].processor
    assert all(0 < use.memory < 2**30 for use in found.values())
    await engine.kill(busy.engine_id)
    assert set(engine.uses(ids)) == {resting.engine_id}
