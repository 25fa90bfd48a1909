"""A container whose console does not come holds up nobody else's, as after a restart, when all come back at once."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from scheduler.containers.consoles import Consoles
from scheduler.engines.base import Output
from tests.support.eventually import PATIENCE, eventually
from web.console.frames import dial
from web.errors import Problem


class Attached:
    async def read(self) -> tuple[Output, bytes]:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None: ...


class Engine:
    """Answers for all containers but one, of which it never says a word."""

    def __init__(self, silent: str) -> None:
        self._silent = silent
        self.attached: list[str] = []

    async def attach(self, engine_id: str) -> Attached:
        self.attached.append(engine_id)
        await asyncio.sleep(0.01)
        if engine_id == self._silent:
            await asyncio.Event().wait()
        return Attached()


async def opened(home: Path, container: UUID) -> Any:
    """The answer to who wants this console."""
    line = await dial(home, container)
    await line.close()
    return line


async def test_one_that_is_never_attached_to_holds_up_no_other_and_each_is_attached_to_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    silent, other = uuid4(), uuid4()
    live_containers = {str(each): SimpleNamespace(finished=False, engine_id=str(each)) for each in (silent, other)}
    engine = Engine(str(silent))
    consoles = Consoles(cast(Any, engine), cast(Any, SimpleNamespace(live_containers=live_containers)), tmp_path)
    await consoles.open()
    waiting = [asyncio.create_task(opened(tmp_path, silent)) for _ in "12"]
    await eventually(lambda: engine.attached)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(opened(tmp_path, other) for _ in "123"))
    assert sorted(engine.attached) == sorted([str(silent), str(other)])
    await consoles.close()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [cast(Problem, end).code for end in ends] == ["scheduler_away"] * 2
    assert not caplog.records  # to be stopped is no fault
