"""A container goes to another card of its host: out of the one, and in on the other, and all that is known follows."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from scheduler.core.invariants import violations
from scheduler.engines.base import EngineAway
from tests.support.host import GIB, query
from tests.support.inprocess.cards import CONTEXT
from tests.support.inprocess.host import InProcess, a_host_inside
from tests.support.inprocess.process import Process
from web.models import Claim, Container

HOLDS = ("workload", "--bytes", "1GiB", "--hold", "600")


@pytest.fixture
async def two(virtual_time: None, database: None, settings: Any) -> AsyncIterator[InProcess]:
    async with a_host_inside(settings, gpus="sim:2x4GiB") as host:
        yield host


def uuid(host: InProcess, index: int) -> str:
    return list(host.cards.cards)[index]


def held(host: InProcess) -> list[int]:
    return [sum(each.values()) for each in host.cards.held.values()]


async def card_of(host: InProcess, container: Container) -> int:
    return (await host.claim(container)).gpu.index


async def holding(host: InProcess, **fields: Any) -> Container:
    container = await host.launch(*HOLDS, **{"gpu_memory": 2 * GIB, **fields})
    await host.says(container, "holding")
    return container


def sound(host: InProcess) -> None:
    assert violations(host.up.broker.state) == []


async def test_it_is_on_the_other_card_and_goes_on_and_all_that_is_reported_follows(two: InProcess) -> None:
    container = await holding(two)
    before = held(two)
    assert (before[0], before[1]) == (GIB + CONTEXT, 0)
    for there, here in ((1, 0), (0, 1)):
        done = await two.command("move", container, gpu=uuid(two, there))
        assert (done.outcome, done.message) == ("done", f"It is on GPU {there}.")
        assert held(two)[there] == GIB + CONTEXT
        assert held(two)[here] == 0
        await two.settle()
        claim = await two.claim(container)
        assert (claim.gpu.index, claim.quota, claim.used) == (there, 2 * GIB, GIB + CONTEXT)
        row = await two.get(container)
        assert (row.state, row.swap, row.card_move) == ("running", "", {})
        sound(two)
    events = await two.events(container, "swapped_out", "swapped_in", "card_changed")
    assert [event.kind for event in events] == 2 * ["swapped_out", "swapped_in", "card_changed"]
    assert [event.gpu_id for event in events[:3]] != [events[0].gpu_id] * 3
    assert events[2].detail.startswith("From GPU 0 to GPU 1.")
    process = two.process(container)
    await process.alloc(GIB // 2)  # its lease is of the card that it has
    assert held(two)[0] == GIB + GIB // 2 + CONTEXT
    await two.command("kill", container)
    await two.returned(container)
    assert held(two) == [0, 0]


async def test_it_computes_there_in_its_turns(two: InProcess) -> None:
    async def computes(process: Process) -> None:
        await process.alloc(GIB)
        process.say("computes")
        await process.compute()

    container, other = [await two.launch(computes, gpu_memory=2 * GIB, gpu_uuids=[uuid(two, 0)]) for _ in range(2)]
    await two.says(other, "computes")
    await two.command("move", container, gpu=uuid(two, 1))
    assert await two.shares(container, other, seconds=20) == pytest.approx([1.0, 1.0], abs=0.05)
    third = await two.launch(computes, gpu_memory=GIB + 2 * CONTEXT, gpu_uuids=[uuid(two, 1)], compute_weight=300)
    assert await two.shares(container, other, third, seconds=40) == pytest.approx([0.25, 1.0, 0.75], abs=0.05)


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"gpu": "GPU-7"}, "unknown_gpu"), ({"gpu": 1, "leaves": "GPU-7"}, "not_movable")],
)
async def test_what_makes_no_sense_is_refused(two: InProcess, fields: dict[str, Any], code: str) -> None:
    container = await holding(two)
    asked = {name: uuid(two, value) if isinstance(value, int) else value for name, value in fields.items()}
    assert (await two.command("move", container, **asked)).code == code
    assert (await card_of(two, container), held(two)[0]) == (0, GIB + CONTEXT)


async def test_what_an_earlier_scheduler_has_done_is_done_when_it_is_asked_again(two: InProcess) -> None:
    """It was killed before it could say so."""
    container = await holding(two)
    for _ in range(2):
        done = await two.command("move", container, gpu=uuid(two, 1))
        assert (done.outcome, done.message) == ("done", "It is on GPU 1.")
    assert len(await two.events(container, "card_changed")) == 1


async def test_it_stays_where_there_is_no_room_or_the_card_is_out_of_service(two: InProcess) -> None:
    container = await holding(two)
    outside = two.outside(4 * GIB - CONTEXT - GIB // 2, gpu=1)
    await two.settle()
    await two.settle()
    assert (await two.command("move", container, gpu=uuid(two, 1))).code == "no_room"
    two.ends_outside(outside)
    await two.settle()
    await two.command("drain-gpu", gpu=uuid(two, 1), reason="")
    assert (await two.command("move", container, gpu=uuid(two, 1))).code == "gpu_drained"
    assert held(two)[0] == GIB + CONTEXT


@pytest.mark.parametrize("code", [1, 801, 999])
async def test_what_the_driver_refuses_comes_back_where_it_was(two: InProcess, code: int) -> None:
    container = await holding(two)
    two.driver.pairs_refused = code
    done = await two.command("move", container, gpu=uuid(two, 1))
    assert (done.outcome, done.code) == ("refused", "not_movable")
    await two.until(container, "running")
    assert (await card_of(two, container), held(two)) == (0, [GIB + CONTEXT, 0])
    assert "cannot be moved to another GPU" in (await two.events(container, "not_moved"))[0].detail
    sound(two)
    two.driver.pairs_refused = 0
    assert (await two.command("move", container, gpu=uuid(two, 1))).code == "not_movable"  # not again


@pytest.mark.parametrize("what", ["no room", "an engine that is away"])
async def test_what_was_in_the_way_of_one_move_is_not_in_the_way_of_the_next(
    two: InProcess, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A foreign program was faster, or dockerd is just being restarted: the driver has refused nothing."""
    container = await holding(two)
    give = two.up.engine.give_card

    async def away(*words: Any) -> None:
        raise EngineAway("The engine does not answer.")

    if what == "no room":
        two.driver.pairs_refused = 2
    else:
        monkeypatch.setattr(two.up.engine, "give_card", away)
    done = await two.command("move", container, gpu=uuid(two, 1))
    assert (done.outcome, done.code) == ("refused", "not_moved")
    assert ("no room" if what == "no room" else "does not answer") in done.message
    await two.until(container, "running")
    assert (await card_of(two, container), held(two)) == (0, [GIB + CONTEXT, 0])
    sound(two)
    two.driver.pairs_refused = 0
    monkeypatch.setattr(two.up.engine, "give_card", give)
    assert not two.up.swapping.cards.refused  # and others are still moved for those who wait
    done = await two.command("move", container, gpu=uuid(two, 1))
    assert (done.outcome, done.message) == ("done", "It is on GPU 1.")


async def test_one_that_is_paused_and_out_comes_back_on_the_other_card(two: InProcess) -> None:
    container = await holding(two)
    await two.command("pause", container, free_memory=True)
    done = await two.command("move", container, gpu=uuid(two, 1))
    assert done.message == "It is in host memory, and comes to GPU 1 when it is resumed."
    await two.command("resume", container)
    await two.until(container, "running")
    await two.eventually(lambda: held(two) == [0, GIB + CONTEXT])
    sound(two)


@pytest.mark.parametrize("step", ["checkpoint", "restore"])
async def test_the_next_scheduler_brings_it_to_one_of_both(two: InProcess, step: str) -> None:
    container = await holding(two)
    two.driver.takes[step] = 30.0
    command = asyncio.create_task(two.command("move", container, gpu=uuid(two, 1)))
    await two.eventually(lambda: (step, two.process(container).pid) in two.driver.asked)
    await asyncio.sleep(1)
    command.cancel()
    await asyncio.gather(command, return_exceptions=True)
    await two.crash()
    await two.start()
    await two.eventually(lambda: sorted(held(two)) == [0, GIB + CONTEXT])
    await two.until(container, "running")

    async def rests() -> bool:
        row = await two.get(container)
        return row.swap == "" and not row.card_move

    await two.eventually(rests)
    index = await card_of(two, container)
    assert held(two)[index] == GIB + CONTEXT
    await two.process(container).alloc(GIB // 2)
    sound(two)


async def test_of_one_that_ends_on_the_way_it_is_said_at_once_that_it_has_ended(two: InProcess) -> None:
    container = await holding(two)
    two.driver.takes["restore"] = 5.0
    command = asyncio.create_task(two.command("move", container, gpu=uuid(two, 1)))
    await two.eventually(lambda: ("restore", two.process(container).pid) in two.driver.asked)
    begun = two.loop.time()
    await two.command("kill", container)
    done = await command
    assert (done.outcome, done.code) == ("refused", "container_ended")
    assert two.loop.time() - begun < 30
    await two.returned(container)
    assert not two.up.swapping.cards._awaited
    sound(two)


async def test_of_two_cards_one_is_left(two: InProcess) -> None:
    container = await two.launch("sleep", "600", gpu_count=2, gpu_memory=GIB)
    refused = await two.command("move", container, gpu=uuid(two, 1))
    assert refused.code == "invalid"
    claims = await query(Claim.objects.filter(container=container).count)
    assert claims == 2


async def test_a_card_out_of_service_is_emptied_of_who_can_be_moved(two: InProcess) -> None:
    goes = [await holding(two, gpu_uuids=[uuid(two, 0)], gpu_memory=GIB + 2 * CONTEXT) for _ in range(2)]
    stays = await holding(two, gpu_uuids=[uuid(two, 0)], gpu_memory=GIB + 2 * CONTEXT, give_way=False)
    two.cards.faulty[uuid(two, 0)] = {"xid": 95}
    await two.settle()
    two.cards.faulty.clear()
    await two.eventually(lambda: held(two) == [GIB + CONTEXT, 2 * (GIB + CONTEXT)])
    await two.passes(60)
    assert [await card_of(two, each) for each in (*goes, stays)] == [1, 1, 0]
    assert {(await two.get(each)).state for each in (*goes, stays)} == {"running"}
    (event, *_) = await two.events(goes[0], "swapped_out")
    assert event.detail.startswith("GPU 0 is out of service.")


async def test_one_that_has_left_a_card_leaves_the_next_one_that_is_out_of_service_too(two: InProcess) -> None:
    container = await holding(two)
    for index in (0, 1):
        await two.command("drain-gpu", gpu=uuid(two, index), reason="")
        await two.eventually(lambda: held(two)[1 - index] == GIB + CONTEXT)  # noqa: B023
        await two.command("undrain-gpu", gpu=uuid(two, index))
    assert await card_of(two, container) == 0
    sound(two)


async def test_one_that_had_no_room_elsewhere_leaves_as_soon_as_there_is_some(two: InProcess) -> None:
    other = await two.launch("workload", "--bytes", "3GiB", "--hold", "600", gpu_memory=7 * GIB // 2,
                             gpu_uuids=[uuid(two, 1)], give_way=False)  # fmt: skip
    await two.says(other, "holding")
    container = await holding(two, gpu_uuids=[uuid(two, 0)])
    await two.command("drain-gpu", gpu=uuid(two, 0), reason="")
    await two.passes(30)
    assert await card_of(two, container) == 0
    await two.command("kill", other)
    await two.returned(other)
    await two.eventually(lambda: held(two) == [0, GIB + CONTEXT], within=60)
    assert await card_of(two, container) == 1
    sound(two)


async def test_of_a_card_that_does_not_answer_nothing_is_moved(two: InProcess) -> None:
    await holding(two, gpu_uuids=[uuid(two, 0)])
    two.cards.faulty[uuid(two, 0)] = {"xid": 79}
    await two.passes(60)
    assert two.driver.asked == []


async def test_a_holder_makes_room_for_one_who_wants_a_whole_card(
    virtual_time: None, database: None, settings: Any
) -> None:
    settings.GPUSHARE_MOVE_SHARE, settings.GPUSHARE_GIVE_WAY = 10, "off"
    async with a_host_inside(settings, gpus="sim:2x4GiB", policy="fair") as host:
        small = [await holding(host, gpu_uuids=[uuid(host, index)], gpu_memory=GIB + 2 * CONTEXT) for index in (0, 1)]
        whole = ("workload", "--bytes", "3800MiB", "--hold", "600")
        waits = await host.launch(*whole, gpu_uuids=[uuid(host, 1)], gpu_memory=4 * GIB - 64)
        await host.until(waits, "suspended")
        await host.eventually(lambda: "holding" in host.log(waits), within=600)
        await host.settle()
        assert [await card_of(host, each) for each in (*small, waits)] == [0, 0, 1]
        assert {(await host.get(each)).state for each in (*small, waits)} == {"running"}
        (event, *_) = await host.events(small[1], "swapped_out")
        assert event.detail.startswith(f'It makes room for "{waits.name}".')
        sound(host)


async def test_one_who_waits_is_placed_where_there_is_room(virtual_time: None, database: None, settings: Any) -> None:
    settings.GPUSHARE_MOVE_SHARE, settings.GPUSHARE_GIVE_WAY = 10, "off"
    async with a_host_inside(settings, gpus="sim:2x4GiB", policy="fair") as host:
        first = await holding(host, gpu_uuids=[uuid(host, 0)], gpu_memory=4 * GIB - 64, guaranteed=True)
        waits = await host.launch(*HOLDS, gpu_uuids=[uuid(host, 0)], gpu_memory=2 * GIB)
        await host.until(waits, "suspended")
        await host.eventually(lambda: "holding" in host.log(waits), within=600)
        assert [await card_of(host, each) for each in (first, waits)] == [0, 1]
        sound(host)


@pytest.mark.parametrize("written", [False, True], ids=["before its claim is moved", "after that"])
async def test_a_scheduler_that_is_killed_beside_the_write_leaves_it_on_one_card(
    two: InProcess, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    container = await holding(two)
    there, promises = asyncio.Event(), two.up.store.promises
    move = promises.move

    async def stands(*words: Any) -> None:
        if written:
            await move(*words)
        there.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(promises, "move", stands)
    command = asyncio.create_task(two.command("move", container, gpu=uuid(two, 1)))
    await there.wait()
    command.cancel()
    await asyncio.gather(command, return_exceptions=True)
    await two.crash()
    await two.start()
    await two.eventually(lambda: sorted(held(two)) == [0, GIB + CONTEXT])
    await two.until(container, "running")
    await two.settle()
    index = await card_of(two, container)
    assert held(two)[index] == GIB + CONTEXT
    assert (await two.get(container)).card_move == {}
    await two.process(container).alloc(GIB // 2)
    sound(two)
