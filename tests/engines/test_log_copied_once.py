"""What Docker gives again is not written again, and what is new is written, whatever the stamps say."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import docker
import pytest
import urllib3.exceptions
from docker.types import CancellableStream

from scheduler.engines.docker.logs import InAll, LogCopier
from tests.support.eventually import eventually
from web.console.copied import is_whole

MiB = 1 << 20
Message = tuple[int, bytes]  # seconds since the epoch, text

BEFORE = [(1000, b"a\n"), (1001, b"b\n")]
SET_BACK = [*BEFORE, (500, b"c\n"), (501, b"d\n")]
SET_FORWARD = [*BEFORE, (9000, b"c\n"), (9001, b"d\n")]
FORWARD_AND_BACK = [*BEFORE, (9000, b"c\n"), (1003, b"d\n"), (1004, b"e\n")]
EQUAL = [(1000, b"a\n"), (1000, b"a\n"), (1000, b"b\n"), (1000, b"a\n"), (1001, b"a\n"), (1001, b"a\n")]
# All pieces of a long line bear the stamp of its first; the other stream prints meanwhile.
LONG_LINE = [(1000, b"10 % "), (1060, b"epoch 1\n"), (1000, b"20 % "), (1120, b"epoch 2\n"), (1000, b"30 % ")]


class Docker:
    """Gives its messages back as Docker does: of 20.10, or of 23 and later."""

    def __init__(self, messages: list[Message], *, since_applies_to_each: bool) -> None:
        self.messages, self.running = messages, False
        self._each = since_applies_to_each
        self.dies_after = len(messages) + 100  # messages that it gives in one answer

    def gives(self, new: Message, since: float) -> bool:
        """Docker 20.10 leaves out what is stamped earlier than `since`, wherever it stands."""
        return not self._each or new[0] >= since

    def logs(
        self, _: str, *, stream: bool, follow: bool, timestamps: bool, since: float | None
    ) -> CancellableStream[bytes]:
        assert stream
        assert timestamps
        late = [stamp >= (since or 0) for stamp, _ in self.messages]
        first = late.index(True) if True in late else len(late)
        given = [
            message for number, message in enumerate(self.messages) if (late[number] if self._each else number >= first)
        ]
        return CancellableStream(self._answer(given), io.BytesIO())

    def _answer(self, messages: list[Message]) -> Iterator[bytes]:
        for number, (stamp, text) in enumerate(messages):
            if number == self.dies_after:
                raise urllib3.exceptions.ProtocolError("Connection broken")
            yield f"1970-01-01T{_time(stamp)}Z ".encode() + text

    def inspect_container(self, _: str) -> dict[str, Any]:
        return {"State": {"Running": self.running}}


def _time(stamp: int) -> str:
    return f"{stamp // 3600:02}:{stamp // 60 % 60:02}:{stamp % 60:02}"


@pytest.fixture(params=[True, False], ids=["docker-20", "docker-23"])
def engine(request: pytest.FixtureRequest) -> Docker:
    return Docker([], since_applies_to_each=request.param)


async def copied(engine: Docker, path: Path) -> bytes:
    """The log after a copier has come and gone."""
    api = cast("docker.APIClient", engine)
    copier = LogCopier(api, "e", path, MiB, InAll(1e9, 0.0), tty=False)
    copier.hurry()
    await eventually(copier.done.is_set)
    copier.close()
    return await asyncio.to_thread(path.read_bytes)


def text(messages: list[Message]) -> bytes:
    return b"".join(each for _, each in messages)


SHAPES = pytest.mark.parametrize(
    "messages",
    [SET_BACK, SET_FORWARD, FORWARD_AND_BACK, EQUAL, LONG_LINE],
    ids=["set back", "set forward", "forward and back", "equal stamps", "long line"],
)


@SHAPES
async def test_what_a_followed_stream_gave_is_not_written_again_at_the_end(
    tmp_path: Path, engine: Docker, messages: list[Message]
) -> None:
    engine.messages = messages
    assert await copied(engine, tmp_path / "log") == text(messages)
    assert is_whole(tmp_path / "log")


@SHAPES
async def test_a_scheduler_that_starts_again_at_any_message_goes_on_there(
    tmp_path: Path, engine: Docker, messages: list[Message]
) -> None:
    for start in range(1, len(messages)):
        path, known, new = tmp_path / str(start), messages[:start], messages[start:]
        engine.messages, engine.running = known, True
        assert await copied(engine, path) == text(known)
        assert await copied(engine, path) == text(known), "nothing came since"
        engine.messages, engine.running = messages, False
        given = [each for each in new if engine.gives(each, since=known[-1][0] - 1)]
        assert await copied(engine, path) == text(known + given)


@pytest.mark.parametrize(
    "after", [(500, b"new\n"), (1001, b"new\n"), (9000, b"new\n")], ids=["back", "equal", "forward"]
)
@pytest.mark.parametrize("running", [True, False])
async def test_all_is_new_where_docker_has_dropped_the_last_known_message(
    tmp_path: Path, engine: Docker, after: Message, running: bool
) -> None:
    path = tmp_path / "log"
    engine.messages, engine.running = BEFORE, True
    assert await copied(engine, path) == b"a\nb\n"
    engine.messages, engine.running = [after, (after[0] + 1, b"more\n")], running
    assert await copied(engine, path) == b"a\nb\nnew\nmore\n"
    assert await copied(engine, path) == b"a\nb\nnew\nmore\n"


async def test_output_goes_on_at_once_where_docker_has_dropped_all_of_it(tmp_path: Path, engine: Docker) -> None:
    path = tmp_path / "log"
    engine.messages, engine.running = BEFORE, True
    await copied(engine, path)
    engine.messages = []
    await copied(engine, path)
    engine.messages = [(1001, b"b\n")]
    assert await copied(engine, path) == b"a\nb\nb\n"


async def test_a_docker_daemon_that_dies_while_it_answers_makes_no_log_whole_and_repeats_nothing(
    tmp_path: Path, engine: Docker
) -> None:
    """Its answer ends, as one does that is through."""
    path = tmp_path / "log"
    engine.messages, engine.dies_after = SET_FORWARD, 2
    assert await copied(engine, path) == text(SET_FORWARD[:2])
    assert not is_whole(path)
    engine.dies_after = 1  # before the last known message
    assert await copied(engine, path) == text(SET_FORWARD[:2])
    assert not is_whole(path)
    engine.dies_after = len(SET_FORWARD)
    assert await copied(engine, path) == text(SET_FORWARD)
    assert is_whole(path)
