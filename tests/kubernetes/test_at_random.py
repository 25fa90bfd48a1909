"""Claims at random, against a reference: no card is promised over its memory, and nothing is left over.

The cluster's side is the reference allocator; what is drawn besides is what a cluster must not do and a node has to
bear: a claim that was given more than is there, one that is deleted behind the kubelet's back, a driver that starts
anew.
"""

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kubernetes.cluster.allocator import Unschedulable
from tests.kubernetes.cluster.rules import JSON
from tests.kubernetes.conftest import Lab
from tests.support.host import query
from web.models import Claim

pytestmark = [pytest.mark.timeout(300), pytest.mark.parametrize("gpus", ["sim:2x5GiB"])]

SIZES = st.sampled_from(["1Mi", "700Mi", "1Gi", "1500M", "2Gi", "3.5Gi", "5Gi"])
STEPS = st.one_of(
    st.tuples(st.just("claim"), st.lists(SIZES, min_size=1, max_size=3)),
    st.tuples(st.just("too much"), SIZES),
    st.tuples(st.just("prepare"), st.integers(0, 9)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.just("restart"), st.none()),
)


class Story:
    """`claims`: those of the cluster, by uid, with whether the kubelet has prepared them."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.claims: dict[str, JSON] = {}
        self.prepared: set[str] = set()

    async def step(self, kind: str, value: Any) -> None:
        match kind:
            case "claim":
                with contextlib.suppress(Unschedulable):
                    await self._add(await self.lab.allocator.claim(*value))
            case "too much":
                device = self.lab.allocator.devices()[0]["name"]
                await self._add(await self.lab.allocator.put([self.lab.allocator.result(device, value)]))
            case "prepare" if self.claims:
                await self._prepare(self._pick(value))
            case "end" if self.claims:
                await self._end(self._pick(value))
            case "delete" if self.claims:
                await self.lab.allocator.release(self.claims[self._pick(value)])
            case "restart":
                await self.lab.stop()
                await self.lab.start()
                await self.lab.published()

    async def check(self) -> None:
        """What is promised is what was prepared, by the cluster's own figures, and never more than a card has."""
        rows = await query(
            lambda: list(Claim.objects.filter(container__finished_at=None).select_related("gpu", "container"))
        )
        promised: dict[str, int] = {}
        for row in rows:
            promised[row.gpu.uuid] = promised.get(row.gpu.uuid, 0) + row.quota
        for uuid, size in promised.items():
            assert size <= self.lab.up.gpus.cards[uuid].capacity(0)
        assert {row.container.mount for row in rows} == self.prepared
        for uid in self.prepared:
            meant: dict[str, int] = {}
            for result in self.claims[uid]["status"]["allocation"]["devices"]["results"]:
                size = self._bytes(result["consumedCapacity"]["memory"])
                meant[result["device"]] = meant.get(result["device"], 0) + size
            assert {row.gpu.uuid.lower(): row.quota for row in rows if row.container.mount == uid} == meant
        living = {live.id: live.quota for live in self.lab.up.broker.live_containers.values() if not live.finished}
        assert living.keys() == {str(row.container.pk) for row in rows}

    async def end(self) -> None:
        for uid in list(self.claims):
            await self._end(uid)
        await self.lab.nothing_is_held()

    async def _add(self, claim: JSON) -> None:
        self.claims[claim["metadata"]["uid"]] = claim

    async def _prepare(self, uid: str) -> None:
        answers = await asyncio.gather(*(self.lab.prepare(self.claims[uid]) for _ in range(2)))
        assert answers[0] == answers[1]
        if isinstance(answers[0], dict):
            self.prepared.add(uid)
        else:
            assert "promised to others" in answers[0] or "was deleted" in answers[0], answers

    async def _end(self, uid: str) -> None:
        claim = self.claims.pop(uid)
        await self.lab.unprepare(claim)
        self.prepared.discard(uid)
        await self.lab.allocator.release(claim)

    def _pick(self, number: int) -> str:
        return list(self.claims)[number % len(self.claims)]

    @staticmethod
    def _bytes(text: str) -> int:
        for suffix, scale in (("Mi", 2**20), ("Gi", 2**30), ("M", 10**6)):
            if text.endswith(suffix):
                return int(float(text.removesuffix(suffix)) * scale)
        raise AssertionError(text)


async def test_no_card_is_promised_over_its_memory_and_nothing_is_left(lab: Lab) -> None:
    await lab.published()
    loop = asyncio.get_running_loop()

    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(steps=st.lists(STEPS, min_size=1, max_size=14))
    def play(steps: list[tuple[str, Any]]) -> None:
        asyncio.run_coroutine_threadsafe(_play(lab, steps), loop).result()

    await asyncio.to_thread(play)


async def _play(lab: Lab, steps: list[tuple[str, Any]]) -> None:
    story = Story(lab)
    try:
        for kind, value in steps:
            await story.step(kind, value)
            await story.check()
    finally:
        await story.end()
