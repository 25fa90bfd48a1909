"""What a container asks for and cannot have is told once, then in sums."""

from __future__ import annotations

import asyncio
import time

import pytest

from scheduler.sessions.rejections import RejectionKind, Rejections
from tests.support.host import GIB, Host
from tests.support.raw import Raw

KIND = RejectionKind("c", "g", "over_quota")


def test_the_first_is_told_by_itself_and_what_follows_in_one_sum_a_period() -> None:
    told: list[tuple[RejectionKind, int, int]] = []
    rejections = Rejections(10, lambda *sum_: told.append(sum_))
    assert not rejections.count(KIND, 5, now=0)
    for step in range(1000):
        assert rejections.count(KIND, step, now=1 + step / 1000)
        rejections.tick(1 + step / 1000)
    assert told == []
    rejections.tick(10)
    assert told == [(KIND, 1000, 999)]
    assert rejections.count(KIND, 7, now=11), "it goes on"
    rejections.tick(20)
    assert told[1:] == [(KIND, 1, 7)]
    rejections.tick(30)
    assert not rejections.count(KIND, 7, now=31), "a first one again"
    assert len(told) == 2


def test_what_was_counted_is_told_when_the_container_ends_and_kinds_are_apart() -> None:
    told: list[tuple[RejectionKind, int, int]] = []
    rejections = Rejections(10, lambda *sum_: told.append(sum_))
    other = KIND._replace(container="d")
    for kind in (KIND, KIND, other, KIND._replace(reason="shortage"), other):
        rejections.count(kind, 1, now=0)
    rejections.end("c")
    assert told == [(KIND, 1, 1)]
    rejections.tick(10)
    assert told[1:] == [(other, 1, 1)]


@pytest.mark.budget("rejections_seconds")
async def test_a_thousand_calls_above_the_quota_are_a_few_rows(host: Host) -> None:
    container = await host.launch("sleep", "600", gpu_memory=GIB)
    raw = await asyncio.to_thread(Raw, host.up.server.socket_dir(str(container.pk)))
    await asyncio.to_thread(raw.hello)
    raw.socket.settimeout(30)
    host.up.broker.records.rejections.period = 2.0

    def ask() -> None:
        for serial in range(1000):
            raw.need(2 * GIB, serial)
            assert raw.read() is not None

    begun = time.monotonic()
    await asyncio.to_thread(ask)
    raw.close()
    told = 0
    while told < 999:
        await asyncio.sleep(0.2)
        await host.up.store.flush()
        first, *sums = await host.events(container, "rejected")
        told = sum(int(each.detail.removeprefix("over_quota: ").split()[0]) for each in sums)
        assert time.monotonic() < begun + 60
    assert told == 999
    assert first.detail == "over_quota"
    assert len(sums) <= 1 + (time.monotonic() - begun) / 2
    assert {each.bytes for each in sums} == {2 * GIB}
