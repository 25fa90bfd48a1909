"""Use inside a lease sends no message; it is in the database a fraction of a second later all the same."""

import asyncio

import pytest

from scheduler.parts import PERIODS
from tests.support.host import GIB, MIB
from tests.support.inprocess.host import InProcess


async def test_what_is_freed_inside_a_lease_is_shown_without_waiting_for_the_round(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round of each second is kept from showing: whatever is seen is by the glance."""
    made = await host.launch("workload", "--bytes", "256MiB", "--hold", "600", gpu_memory=GIB)
    await host.says(made, "holding")
    await host.settle()
    monkeypatch.setattr(host.up.report, "publish", lambda: None)
    monkeypatch.setattr(host.up.measure, "once", asyncio.Event().wait)  # nor does what is measured show it
    await asyncio.sleep(1.1)  # one that was under way has ended
    await host.process(made).free(64 * MIB)
    await asyncio.sleep(0.5)
    assert (await host.claim(made)).used == host.process(made).used[0]


async def test_who_changes_all_the_time_does_not_keep_another_from_being_shown(host: InProcess) -> None:
    """More change than are shown at once: those who were shown last come last."""
    report = host.up.report
    made = [await host.launch("sleep", "600") for _ in range(3)]
    ids = [str(each.pk) for each in made]
    await host.eventually(lambda: all(id_ in report._published for id_ in ids))
    assert list(report._published)[-3:] == [id_ for id_ in report._published if id_ in ids]
    assert PERIODS["use inside leases"] <= 0.1
