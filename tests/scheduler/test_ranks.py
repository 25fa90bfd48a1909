"""Trainings on two cards, whose ranks wait for each other: they take turns, keep limits, and are moved or refused."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduler.card import gates, processes, turns
from tests.scheduler.test_turns_processes import standing
from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, Host, SeparateScheduler, a_host, on_card
from tests.support.swapped import at_once
from web.models import Container


@pytest.fixture
async def lab(transactional_db: None, settings: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    settings.GPUSHARE_GIVE_WAY = "off"
    async with a_host(settings, tmp_path_factory.mktemp("host"), gpus="sim:2x5GiB") as host:
        yield host


def rank(number: int, unique: str, ranks: int = 2, device: int | None = None) -> str:
    device = number if device is None else device
    options = f"--unique {unique} --rank {number} --ranks {ranks} --device {device}"
    return f"{sys.executable} -m tests.support.training {options}"


async def training(host: Host, *ranks: str, **fields: object) -> Container:
    """Each with a process of its own; both of one communicator if none is named."""
    unique = os.urandom(128).hex()
    script = " & ".join([*(ranks or (rank(0, unique), rank(1, unique))), "wait"])
    fields = {"gpu_memory": GIB // 2, "gpu_count": 2, "environment": {"PYTHONPATH": str(BUILD.parent)}} | fields
    return await host.launch("sh", "-c", script, **fields)


async def had(host: Host, *containers: Container, seconds: float) -> list[float]:
    """Seconds of the first card that each has had in so many; the simulated card knows."""
    before = [on_card(host, each) for each in containers]
    await asyncio.sleep(seconds)
    return [on_card(host, each) - was for each, was in zip(containers, before, strict=True)]


async def shared(host: Host, its: Mapping[Container, float]) -> None:
    """Returns once each has had its part of some seconds: with another job on both processors some are off."""
    for _ in range(6):
        parts = await had(host, *its, seconds=6)
        if [part / sum(parts) for part in parts] == pytest.approx(list(its.values()), abs=0.08):
            return
    raise AssertionError(parts)


async def take_turns(host: Host, *containers: Container) -> None:
    """Waits until each has been stopped once; a new one is not known to the turns at once."""
    for each in containers:
        await eventually(lambda: (its := host.up.turns.standing(str(each.pk))) and its.held_back > 0)  # noqa: B023


def steps(host: Host, container: Container) -> int:
    return max([0, *(int(line) for line in host.log(container).splitlines() if line.isdigit())])


async def goes_on(host: Host, *containers: Container) -> None:
    for each in containers:
        before = steps(host, each)
        await eventually(lambda: steps(host, each) > before)  # noqa: B023


async def test_two_trainings_share_two_cards_by_their_weights(lab: Host) -> None:
    one, two = await training(lab, compute_weight=300), await training(lab, compute_weight=100)
    await goes_on(lab, one, two)
    await take_turns(lab, one, two)
    await shared(lab, {one: 0.75, two: 0.25})
    await goes_on(lab, one, two)
    assert [(await lab.get(each)).no_turns for each in (one, two)] == ["", ""]


async def test_a_limit_is_kept_alone(lab: Host) -> None:
    one = await training(lab)
    await goes_on(lab, one)
    await lab.command("change", one, compute_weight=100, compute_limit=30)
    await take_turns(lab, one)
    for _ in range(6):
        (limited,) = await had(lab, one, seconds=6)
        if limited / 6 == pytest.approx(0.3, abs=0.06):
            return
    raise AssertionError(limited)


async def test_ranks_in_two_containers_have_their_turns_together(lab: Host) -> None:
    """And others on either card have theirs meanwhile."""
    unique = os.urandom(128).hex()
    pair = [
        await training(lab, rank(card.index, unique, device=0), gpu_count=1, gpu_uuids=[card.uuid])
        for card in sorted(lab.up.gpus.cards.values(), key=lambda card: card.index)
    ]
    await goes_on(lab, *pair)
    await eventually(lambda: lab.up.turns._groups.first.keys() == {str(each.pk) for each in pair})
    other = await training(lab)
    await take_turns(lab, *pair, other)
    stops = [lab.up.turns.is_stopped(str(each.pk)) for each in pair]
    assert stops[0] == stops[1]
    await shared(lab, {pair[0]: 0.5, other: 0.5})


async def test_one_whose_rank_stands_still_holds_up_others_for_a_moment_only(
    lab: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "HUNG_FOR", 1.0)
    monkeypatch.setattr(processes, "MISSED", 1.0)
    one, two = await training(lab), await training(lab)
    await goes_on(lab, one, two)
    await take_turns(lab, one, two)
    pids = sorted(lab.up.computing.pids(str(one.pk)))
    os.kill(pids[0], signal.SIGSTOP)

    async def reported() -> str:
        return (await lab.get(one)).no_turns

    while str(pids[0]) not in await reported():  # a busy machine may have given another reason before
        await goes_on(lab, two)
    await goes_on(lab, two)
    os.kill(pids[0], signal.SIGCONT)
    await goes_on(lab, one, two)
    while await reported():
        await goes_on(lab, one)
    assert standing(lab, one).had > 0


async def test_ranks_are_moved_only_if_they_were_launched_so(lab: Host) -> None:
    at_once()
    kept, moved = await training(lab), await training(lab, movable=True)
    await goes_on(lab, kept, moved)
    answer = await lab.command("pause", kept, free_memory=True)
    assert (answer.outcome, answer.code, answer.status) == ("refused", "cannot_swap", 409)
    await goes_on(lab, kept)
    for _ in range(3):
        answer = await lab.command("pause", moved, free_memory=True)
        assert answer.outcome == "done", answer.message
        assert (await lab.command("resume", moved)).outcome == "done"
        await goes_on(lab, moved)


async def test_one_that_comes_to_no_cut_is_not_moved_and_goes_on(lab: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once()
    monkeypatch.setattr(gates, "HOLD", 0.0)
    one = await training(lab, movable=True)
    await goes_on(lab, one)
    answer = await lab.command("pause", one, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "cannot_swap")
    await goes_on(lab, one)
    assert (await lab.get(one)).swap == ""


async def test_a_scheduler_that_is_killed_in_the_middle_of_a_stop_leaves_no_rank_behind(
    transactional_db: None, tmp_path: Path
) -> None:
    scheduler = SeparateScheduler(tmp_path, GPUSHARE_GPUS="sim:2x2GiB")
    await scheduler.start()
    host = Host(tmp_path)
    try:
        pair = [await training(host), await training(host)]
        await goes_on(host, *pair)
        for number in range(4):
            await asyncio.sleep(0.9 + 0.13 * number)  # into another part of a cycle each time
            await scheduler.kill()
            await goes_on(host, *pair)
            await scheduler.start()
            await goes_on(host, *pair)
    finally:
        await asyncio.gather(*(host.command("kill", container) for container in await host.living()))
        await scheduler.stop()
