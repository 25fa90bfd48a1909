"""What pages claim of the time without a scheduler is believed no further than what the last one had granted."""

import os
from pathlib import Path

import pytest

from scheduler.sessions import grants, lease_pages
from scheduler.sessions.grants import Grants
from scheduler.sessions.lease_pages import LeasePage
from scheduler.sessions.live_containers import program_of
from tests.support.host import GIB
from tests.support.inprocess.host import InProcess
from web.models import Container

HOLD = ("--check", "1MiB", "--hold", "600")


def claim(host: InProcess, container: Container, size: int) -> None:
    """As the program itself might: its page says that the last scheduler granted it so much, and that it heard."""
    for session in list(host.up.broker.live_containers[str(container.pk)].sessions.values()):
        fd = lease_pages.find(session.pid, session.container)
        assert fd is not None
        page = LeasePage.adopt(os.dup(fd))
        os.close(fd)
        page[0].grant(size)
        page[0].accept(size)
        page.close()


async def test_claim_to_more_than_was_granted_gets_nobody_past_the_queue(host: InProcess) -> None:
    holder = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    greedy = await host.launch("workload", "--bytes", "256MiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(greedy, "holding")
    (gpu,) = host.up.gpus.cards
    granted = {id_: live.granted(gpu) for id_, live in host.up.broker.live_containers.items()}
    used = {id_: live.used(gpu) for id_, live in host.up.broker.live_containers.items()}
    await host.stop()
    claim(host, greedy, 3 * GIB)
    await host.start()
    greedy_now, holder_now = (host.up.broker.live_containers[str(each.pk)] for each in (greedy, holder))
    assert greedy_now.granted(gpu) <= granted[greedy_now.id] < GIB
    assert holder_now.used(gpu) == used[holder_now.id]  # who claims nothing false keeps it all


ME = os.getpid()


def test_figures_are_those_that_were_noted_last(tmp_path: Path) -> None:
    started = _started()
    first = Grants(tmp_path / "grants")
    first.note(ME, started, "GPU-01")(5 * GIB)
    first.note(ME, started, "GPU-02")(7)
    first.note(ME, started, "GPU-02")(8)
    first.note(ME, started, "GPU-03")(9)
    first.forget(ME, started, ["GPU-03"])
    first.note(ME, started + 1, "GPU-01")(10)  # a process that is no more
    second = Grants(tmp_path / "grants")
    figures = [second.before(ME, started, gpu) for gpu in ("GPU-01", "GPU-02", "GPU-03")]
    assert figures == [5 * GIB, 8, 0]
    assert second.before(ME, started + 1, "GPU-01") == 0


def test_more_than_there_is_room_for_are_believed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "RECORDS", 1)
    started, first = _started(), Grants(tmp_path / "grants")
    for gpu in ("GPU-01", "GPU-02"):
        first.note(ME, started, gpu)(1)
    assert Grants(tmp_path / "grants").before(ME, started, "GPU-02") is None
    # A scheduler that is killed in its take-over has noted nobody either.
    third = Grants(tmp_path / "grants")
    assert third.before(ME, started, "GPU-02") is None
    third.note(ME, started, "GPU-02")(5)
    third.all_noted()
    assert Grants(tmp_path / "grants").before(ME, started, "GPU-02") == 5


def _started() -> int:
    program = program_of(ME)
    assert program
    return program.started
