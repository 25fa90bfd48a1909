"""The file by which a scheduler knows that nobody of the last one is left."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from scheduler.card.generation import Generation
from scheduler.containers.takeover import TakeOver
from scheduler.engines.base import EngineError
from tests.support.inprocess.host import InProcess


def held() -> list[Path]:
    return [link for link in Path("/proc/self/fd").iterdir() if os.path.realpath(link).endswith("/guardian.lock")]


def test_nobody_else_may_open_it_whoever_made_it(tmp_path: Path) -> None:
    """Else they hold it, and nobody is stopped or moved for a minute after each start."""
    (tmp_path / "lock").touch()
    (tmp_path / "lock").chmod(0o666)
    Generation(tmp_path / "lock").close()
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


async def test_a_kernel_without_room_for_another_lock_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody takes turns any more, and whoever is being moved at that moment stays half way."""
    flock, answers = fcntl.flock, [errno.ENOLCK, errno.ENOLCK]

    def short_of_them(fd: int, how: int) -> None:
        if answers:
            raise OSError(number := answers.pop(), os.strerror(number))
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", short_of_them)
    generation = Generation(tmp_path / "lock")
    await generation.alone()
    assert not answers
    generation.close()


async def test_a_scheduler_that_cannot_start_leaves_it_closed(host: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    await host.stop()
    before = held()

    async def fails(self: TakeOver) -> None:
        raise EngineError("It does not answer.")

    with monkeypatch.context() as patched:
        patched.setattr(TakeOver, "run", fails)
        with pytest.raises(EngineError):
            await host.start()
    assert held() == before
    host._run = None
    await host.start()
