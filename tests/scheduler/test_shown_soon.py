"""Use inside a lease sends no message; it is in the database a fraction of a second later all the same."""

from __future__ import annotations

import asyncio
import time

import pytest

from scheduler.parts import PERIODS
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import GIB, MIB, Host, host, query
from web.models import Claim

__all__ = ["host"]


pytestmark = pytest.mark.django_db(transaction=True)


async def test_what_is_freed_inside_a_lease_is_shown_without_waiting_for_the_round(host: Host, monkeypatch) -> None:
    """The round of each second is kept from showing: whatever is seen is by the glance."""
    made = await host.launch("workload", "--bytes", "256MiB", "--chunks", "4", "--check", "1MiB", "--hold", "600",
                             gpu_memory=GIB)  # fmt: skip
    await host.until(made, "running")

    async def used() -> int:
        return (await query(Claim.objects.get, container=made)).used

    deadline = time.monotonic() + PATIENCE
    while await used() < 256 * MIB:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    monkeypatch.setattr(host.up.report, "publish", lambda: None)
    monkeypatch.setattr(host.up.measure, "once", asyncio.Event().wait)  # nor does what is measured show it
    await asyncio.sleep(1.1)  # one that was under way has ended
    live = host.up.broker.live_containers[str(made.pk)]
    (session,) = live.sessions.values()
    (lease,) = session.leases.values()
    before = await used()
    monkeypatch.setattr(type(lease), "used", property(lambda self: 77 * MIB))
    begun = time.monotonic()
    while await used() != 77 * MIB:
        assert time.monotonic() < begun + PATIENCE
        await asyncio.sleep(0.005)
    assert before != 77 * MIB
    print(f"shown after {1000 * (time.monotonic() - begun):.0f} ms")


async def test_who_changes_all_the_time_does_not_keep_another_from_being_shown(host: Host) -> None:
    """More change than are shown at once: those who were shown last come last."""
    report = host.up.report
    made = [await host.launch("sleep", "600") for _ in range(3)]
    ids = [str(each.pk) for each in made]
    await eventually(lambda: all(id_ in report._told for id_ in ids))
    assert list(report._told)[-3:] == [id_ for id_ in report._told if id_ in ids]
    assert PERIODS["use inside leases"] <= 0.1
