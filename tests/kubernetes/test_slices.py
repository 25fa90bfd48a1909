"""The cluster is informed of what this node has, each time that it changes, and nothing any more at the end."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from scheduler.kubernetes.api import slices
from tests.kubernetes.cluster.api_server import NODES, SLICES
from tests.kubernetes.cluster.rules import JSON
from tests.kubernetes.conftest import DRIVER, NODE, Lab
from tests.support.eventually import eventually


@pytest.fixture
def gpus() -> str:
    return "sim:2x5GiB"


async def test_each_card_is_a_device_whose_memory_is_divided_in_steps_of_a_mebibyte(lab: Lab) -> None:
    spec = (await lab.published())["spec"]
    assert (spec["driver"], spec["nodeName"]) == (DRIVER, NODE)
    assert spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert len(spec["devices"]) == 2
    for device, card in zip(spec["devices"], lab.up.gpus.cards.values(), strict=True):
        assert device["name"] == card.uuid.lower()
        assert device["allowMultipleAllocations"] is True
        policy = {"default": "1024Mi", "validRange": {"min": "1Mi", "max": "5120Mi", "step": "1Mi"}}
        assert device["capacity"] == {"memory": {"value": "5120Mi", "requestPolicy": policy}}
        attributes = {name: value["string"] for name, value in device["attributes"].items()}
        assert attributes["uuid"] == card.uuid
        assert attributes["product"] == card.name
        assert attributes["computing"] in ("turns", "shared")


async def test_what_changes_is_published_with_a_higher_generation_and_what_does_not_is_not(lab: Lab) -> None:
    first = await lab.published()
    await eventually(lambda: not lab.node.slices.problem)
    writes = len([call for call in lab.api.calls if call[0] in ("create", "update")])
    offers = lab.node._offers()
    lab.node.slices.show(offers)
    lab.node._offers = lambda: [replace(offers[0], taint="foreign-memory"), offers[1]]
    await eventually(lambda: lab.api.all(SLICES)[0]["spec"]["pool"]["generation"] == 2)
    (second,) = lab.api.all(SLICES)
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    (taint,) = second["spec"]["devices"][0]["taints"]
    assert (taint["key"], taint["effect"]) == ("gpushare.dev/foreign-memory", "NoSchedule")
    await eventually(lambda: not lab.node.slices.problem)
    assert len([call for call in lab.api.calls if call[0] in ("create", "update")]) == writes + 1


async def test_foreign_memory_taints_its_card_and_a_size_is_rounded_down_to_the_step(lab: Lab) -> None:
    assert slices._device(slices.Offer("GPU-1", (5 << 30) - 1, "P", "", "", ""), True)["capacity"]["memory"][
        "value"
    ] == ("5119Mi")
    state, card = lab.up.broker.state, next(iter(lab.up.gpus.cards))
    gpus = {uuid: replace(gpu, capacity=gpu.most - (uuid == card)) for uuid, gpu in state.gpus.items()}
    lab.up.broker.state = replace(state, gpus=gpus)
    lab.node._ailing = {}
    assert [offer.taint for offer in lab.node._offers()] == ["", ""]  # it may be gone in a moment
    assert [offer.taint for offer in lab.node._offers()] == ["foreign-memory", ""]


async def test_a_card_that_has_failed_or_is_lost_gets_nothing_new(lab: Lab) -> None:
    await lab.published()
    readings, (first, second) = dict(lab.up.measure.readings), lab.up.gpus.cards
    lab.node.see({first: replace(readings[first], xid=79)})
    lab.node._offers()
    assert [offer.taint for offer in lab.node._offers()] == ["critical-error", "lost"]
    assert [now for _, now in lab.node._sizes().values()] == [0, 0]
    lab.node.see(readings)
    lab.node._offers()
    assert lab.node._fault(second) == ""  # it answers again
    await eventually(lambda: lab.api.all(SLICES)[0]["spec"]["devices"][0].get("taints"))
    (taint,) = lab.api.all(SLICES)[0]["spec"]["devices"][0]["taints"]
    assert (taint["key"], taint["effect"]) == ("gpushare.dev/critical-error", "NoSchedule")


async def test_a_slice_that_somebody_removes_or_changes_is_published_again(lab: Lab) -> None:
    first = await lab.published()
    await eventually(lambda: not lab.node.slices.problem)
    await lab.api.remove(SLICES, first["metadata"]["name"])
    await eventually(lambda: lab.api.all(SLICES))
    (again,) = lab.api.all(SLICES)
    assert again["spec"]["devices"] == first["spec"]["devices"]
    changed = {**again["spec"], "devices": again["spec"]["devices"][:1]}
    await lab.api.put(SLICES, again["metadata"]["name"], {"spec": changed})
    await eventually(lambda: len(lab.api.all(SLICES)[0]["spec"]["devices"]) == 2)


async def test_a_kubelet_that_was_restarted_forgets_us_and_finds_us_again(lab: Lab) -> None:
    await lab.published()
    await lab.kubelet.restart()
    await eventually(lambda: DRIVER in lab.kubelet.drivers)
    await lab.published()
    assert lab.kubelet.refused == []


async def test_a_list_that_is_too_old_to_be_watched_is_made_anew(lab: Lab) -> None:
    first = await lab.published()
    await eventually(lambda: ("watch", SLICES) in lab.api.calls)
    await lab.api.stop()
    await lab.api.remove(SLICES, first["metadata"]["name"])
    lab.api.compact()
    await lab.api.start()
    await eventually(lambda: lab.api.all(SLICES))


async def test_somebody_who_writes_at_the_same_time_is_no_end_of_it(lab: Lab) -> None:
    """Between our look and our write the slice becomes another: a conflict."""
    first = await lab.published()
    await eventually(lambda: not lab.node.slices.problem)
    meddled = []

    async def meddle(verb: str, key: tuple[str, str, str]) -> None:
        if verb == "update" and not meddled:
            meddled.append(key)
            await lab.api.put(SLICES, key[2], {"metadata": {"labels": {"by": "somebody"}}, "spec": first["spec"]})

    lab.api.before = meddle
    offers = lab.node._offers()
    lab.node._offers = lambda: [replace(offers[0], taint="no-memory"), offers[1]]
    await eventually(lambda: "taints" in lab.api.all(SLICES)[0]["spec"]["devices"][0])
    assert meddled


async def test_a_cluster_without_consumable_capacity_is_offered_nothing_and_it_is_said_why(lab: Lab) -> None:
    await lab.published()
    await eventually(lambda: not lab.node.slices.problem)
    lab.api.consumable = False
    await lab.kubelet.wipe()
    await eventually(lambda: "feature gate DRAConsumableCapacity is off" in lab.node.slices.problem)
    assert lab.api.all(SLICES) == []
    assert "drops allowMultipleAllocations" in lab.node.slices.problem


async def test_memory_that_is_counted_is_not_offered_to_claims_as_well_when_the_gate_is_turned_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be given to two. A driver that is started anew offers it to claims."""
    monkeypatch.setattr(slices, "TRIES_AGAIN", 0.05)
    await lab.published()
    lab.api.consumable = False
    await lab.kubelet.wipe()
    await eventually(lab.node.slices.cannot_divide.is_set)
    await eventually(lambda: lab.node.counting.plugin.endpoint.exists())
    lab.api.consumable = True
    lab.api.calls.clear()
    lab.node.slices.show(lab.node._offers())
    for _ in range(3):
        lab.node.slices._changed.set()
        await asyncio.sleep(0.1)
    assert lab.api.calls == []
    assert lab.api.all(SLICES) == []
    await lab.stop()
    await lab.start()
    await lab.published()


async def test_a_cluster_without_taints_is_sent_all_else_and_not_again_and_again(lab: Lab) -> None:
    lab.api.taints = False
    await lab.published()
    offers = lab.node._offers()
    lab.node._offers = lambda: [replace(offers[0], taint="foreign-memory"), offers[1]]
    await eventually(lambda: not lab.node.slices._tainting)
    await eventually(lambda: not lab.node.slices.problem)
    generation = lab.api.all(SLICES)[0]["spec"]["pool"]["generation"]
    for _ in range(3):
        lab.node.slices._changed.set()
        await eventually(lambda: not lab.node.slices._changed.is_set())
    assert lab.api.all(SLICES)[0]["spec"]["pool"]["generation"] <= generation + 1


async def test_a_taint_that_comes_while_a_slice_is_written_is_not_taken_for_one_that_the_cluster_dropped(
    lab: Lab,
) -> None:
    await lab.published()
    await eventually(lambda: not lab.node.slices.problem)
    offers, shown = lab.node._offers(), lab.node.slices
    tainted = [replace(offers[0], taint="no-memory"), offers[1]]
    lab.node._offers = lambda: tainted

    async def show(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == SLICES and verb == "get":
            shown.show(tainted)

    lab.api.before = show
    await lab.kubelet.wipe()
    await eventually(lambda: [each for each in lab.api.all(SLICES) if "taints" in each["spec"]["devices"][0]])
    assert shown._tainting


async def test_what_somebody_else_writes_before_it_is_read_back_is_not_taken_for_a_cluster_that_cannot_divide(
    lab: Lab,
) -> None:
    first = await lab.published()
    await eventually(lambda: not lab.node.slices.problem)
    meddled = []

    async def meddle(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == SLICES and verb == "get" and not meddled:
            meddled.append(key)
            await lab.api.put(SLICES, key[2], {"spec": {**first["spec"], "devices": first["spec"]["devices"][:1]}})

    lab.api.before = meddle
    await lab.kubelet.wipe()
    await eventually(lambda: meddled and [len(each["spec"]["devices"]) for each in lab.api.all(SLICES)] == [2])
    assert not lab.node.slices.cannot_divide.is_set()


async def test_a_node_that_was_taken_out_and_put_back_owns_its_slice_again(lab: Lab) -> None:
    first = await lab.published()
    node = await lab.api.put(NODES, NODE, {"metadata": {"uid": str(uuid.uuid4())}})
    await lab.api.remove(SLICES, first["metadata"]["name"])  # as it does with what nobody owns any more
    await eventually(lambda: lab.api.all(SLICES))
    ((owner,),) = [each["metadata"]["ownerReferences"] for each in lab.api.all(SLICES)]
    assert owner["uid"] == node["metadata"]["uid"]


async def test_a_server_that_ends_every_watch_at_once_is_not_kept_busy(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.published()
    await eventually(lambda: not lab.node.slices.problem)
    looks = 0

    async def ends(path: str, version: str, **fields: str) -> AsyncIterator[JSON]:
        nonlocal looks
        looks += 1
        for event in ():
            yield event

    monkeypatch.setattr(slices, "PAUSE", 0.2)
    monkeypatch.setattr(lab.node._api, "watch", ends)
    lab.node.slices._changed.set()
    await eventually(lambda: looks)
    begun = time.monotonic()
    await eventually(lambda: looks > 3)
    assert time.monotonic() - begun > 0.4


async def test_at_its_end_nothing_is_offered_any_more(lab: Lab) -> None:
    await lab.published()
    await lab.stop()
    assert lab.api.all(SLICES) == []
    assert list(lab.kubelet.registry.iterdir()) == []
    await lab.start()
    await lab.published()
