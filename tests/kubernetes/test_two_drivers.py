"""Two drivers on one node, each installed for itself: what all of a node share is one's, until that one has gone."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.kubernetes import node
from scheduler.kubernetes.kubelet.server import KubeletServer
from scheduler.kubernetes.kubelet.sockets import CannotServe
from scheduler.kubernetes.node import Node
from tests.kubernetes.cluster.api_server import SLICES
from tests.kubernetes.conftest import Lab
from tests.support.eventually import eventually


@pytest.fixture
async def second(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """With a home of its own, and another database: it knows of nothing."""
    monkeypatch.setattr(node, "TRIES_AGAIN", 0.2)
    up = lab.up
    found = Node(tmp_path, up.gpus, up.store)
    found.engine(lab.node._engine.runtime_environment)
    found.meet(replace(up.shared, home=tmp_path), up.containers, up.ender, up.turns)
    return found


async def test_the_second_says_so_and_touches_nothing_of_the_first(
    lab: Lab, second: Node, caplog: pytest.LogCaptureFixture
) -> None:
    published = await lab.published()
    claim = await lab.allocator.claim("1Gi")
    first = await lab.prepare(claim)
    specification, asked = lab.specification(claim), lab.kubelet.asked
    running = asyncio.create_task(second.run())
    try:
        await eventually(lambda: caplog.text.count("Another driver of ours serves this node's kubelet") > 1)
        assert "Another driver" in second.kubelet.registered
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await second.close()
    assert lab.specification(claim) == specification
    assert [each["metadata"]["uid"] for each in lab.api.all(SLICES)] == [published["metadata"]["uid"]]
    assert lab.kubelet.asked == asked
    assert await lab.prepare(claim) == first


async def test_it_takes_over_when_the_first_has_gone(lab: Lab, second: Node) -> None:
    await lab.published()
    running = asyncio.create_task(second.run())
    try:
        await lab.stop()
        await eventually(lambda: lab.api.all(SLICES))
        await eventually(lambda: second.kubelet.endpoint.exists())
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await second.close()
    assert lab.api.all(SLICES) == []
    await lab.start()


async def test_one_kubelet_has_one_driver(lab: Lab) -> None:
    await lab.published()
    other = KubeletServer(lab.kubelet.plugins.parent, *[lab.node.driver.prepare] * 3)  # type: ignore[list-item]
    with pytest.raises(CannotServe, match="Another driver of ours serves this node's kubelet"), other.alone():
        pass
