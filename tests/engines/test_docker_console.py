"""The keyboard and the screen of a Docker container, against a real dockerd."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.engines.base import Attached, Condition, EngineError, Launch, Output
from scheduler.engines.docker import client
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.logs import DOCKERS_BUFFER, messages_of_terminal
from tests.engines.conftest import Opener, next_change
from tests.support.eventually import eventually

Launcher = Callable[..., Launch]


async def all_of(attached: Attached) -> dict[Output, bytes]:
    """What it writes until it ends."""
    written = {Output.OUT: b"", Output.ERR: b""}
    while (piece := await attached.read())[1]:
        written[piece[0]] += piece[1]
    await attached.close()
    return written


async def until(attached: Attached, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        piece = (await attached.read())[1]
        assert piece, seen
        seen += piece
    return seen


@pytest.mark.docker
async def test_what_goes_in_comes_out_and_its_end_ends_the_program(
    docker_engine: DockerEngine, a_launch: Launcher
) -> None:
    engine_id = (await docker_engine.launch(a_launch("cat", interactive=True))).engine_id
    attached = await docker_engine.attach(engine_id)
    await attached.write(bytes(range(256)) * 100)
    attached.end_input()
    assert await all_of(attached) == {Output.OUT: bytes(range(256)) * 100, Output.ERR: b""}
    assert (await next_change(docker_engine, Condition.ENDED)).exit_code == 0


@pytest.mark.docker
async def test_all_output_is_there_though_nobody_asked_in_time_and_apart(
    docker_engine: DockerEngine, a_launch: Launcher
) -> None:
    launch = a_launch("/bin/sh", "-c", "echo wrong >&2; seq 1 100000", interactive=True)
    engine_id = (await docker_engine.launch(launch)).engine_id
    wanted = b"".join(b"%d\n" % number for number in range(1, 100_001))
    assert await all_of(await docker_engine.attach(engine_id)) == {Output.OUT: wanted, Output.ERR: b"wrong\n"}


@pytest.mark.docker
async def test_a_terminal_has_the_size_it_is_given_and_outlives_the_scheduler(
    open_engine: Opener, a_launch: Launcher
) -> None:
    launch = a_launch("/bin/sh", interactive=True, tty=True)
    async with open_engine() as engine:
        engine_id = (await engine.launch(launch)).engine_id
        attached = await engine.attach(engine_id)
        await attached.resize(33, 111)
        await attached.write(b"stty size; echo $((6 * 7))\n")
        assert b"33 111\r\n42\r\n" in await until(attached, b"42\r\n")
        attached.end_input()
        await attached.close()
    async with open_engine() as engine:
        attached = await engine.attach(engine_id)
        await attached.write(b"\x10\x11echo still $((1 + 1)); exit 3\n")  # Ctrl-P Ctrl-Q are keys like others
        assert b"still 2\r\n" in (await all_of(attached))[Output.OUT]
        assert (await next_change(engine, Condition.ENDED)).exit_code == 3
        with pytest.raises(EngineError, match="has ended"):
            await engine.attach(engine_id)
        await engine.remove(engine_id)


@pytest.mark.docker
async def test_who_has_no_keyboard_cannot_be_attached_to(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    engine_id = (await docker_engine.launch(a_launch("sleep", "600"))).engine_id
    with pytest.raises(EngineError, match="without input"):
        await docker_engine.attach(engine_id)


@pytest.mark.docker
async def test_a_terminals_output_reaches_the_log_across_restarts(open_engine: Opener, a_launch: Launcher) -> None:
    script = "yes x | head -n 40000 | tr -d '\\n'; echo; for i in $(seq 1 100); do echo line $i; sleep 0.02; done"
    launch = a_launch("/bin/sh", "-c", f"{script}; printf end", tty=True)
    async with open_engine() as engine:
        engine_id = (await engine.launch(launch)).engine_id
        await eventually(lambda: launch.log_path.exists() and b"line 20\r\n" in launch.log_path.read_bytes())
    async with open_engine() as engine:
        await next_change(engine, Condition.ENDED)
        await eventually(lambda: engine._watch._logs[engine_id].complete)
        await engine.remove(engine_id)
    lines = ["x" * 40000, *(f"line {number}" for number in range(1, 101)), "end"]
    assert launch.log_path.read_bytes() == "\r\n".join(lines).encode()


@pytest.mark.docker
async def test_a_terminal_may_be_quiet_for_longer_than_docker_may(
    open_engine: Opener, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launch = a_launch("/bin/sh", "-c", "sleep 5; echo late", tty=True)
    async with open_engine() as engine:
        api, logs = engine._client.api, engine._client.api.logs

        def impatient(*arguments: Any, **options: Any) -> Any:
            """Only here: on a busy machine Docker needs longer than that to make a container."""
            api.timeout = 3
            try:
                return logs(*arguments, **options)
            finally:
                api.timeout = client.ANSWERS_WITHIN

        monkeypatch.setattr(api, "logs", impatient)
        engine_id = (await engine.launch(launch)).engine_id
        await next_change(engine, Condition.ENDED)
        await eventually(lambda: engine._watch._logs[engine_id].complete)
        assert launch.log_path.read_bytes() == b"late\r\n"
        assert "not copied" not in caplog.text
        await engine.remove(engine_id)


STAMP = b"2026-11-20T21:33:34.292872726Z "


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_messages_without_frames_are_separated_by_lines_and_dockers_buffer(size: int) -> None:
    texts = [b"one\r\n", b"\n", b"x" * DOCKERS_BUFFER, b"y" * (DOCKERS_BUFFER - 1) + b"\n", b"$ "]
    whole = b"".join(STAMP + text for text in texts)
    chunks = (whole[at : at + size] for at in range(0, len(whole), size))
    assert list(messages_of_terminal(chunks)) == [STAMP + text for text in texts]
