"""A program on the simulated card can cut its file off: the scheduler goes on, and the card comes back."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from scheduler.gpus import simulated_card
from tests.support.eventually import eventually
from tests.support.host import BUILD, Host


@pytest.mark.parametrize("length", [0, 100, 1 << 16])
async def test_the_scheduler_goes_on_while_the_card_is_gone_and_sees_it_when_it_is_back(
    host: Host, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    path = host.up.gpus.simulation
    assert path is not None
    whole = path.read_bytes()
    with path.open("r+b") as card:
        card.truncate(min(length, len(whole) - 1))
    await host.up.measure.once()
    assert host.up.measure.readings == {}
    assert "lost" in caplog.text.lower()
    container = await host.launch("true", gpu_memory=1 << 20)
    await host.until(container, "exited")
    with path.open("r+b") as card:
        card.write(whole)
    await eventually(lambda: list(host.up.measure.readings) == list(host.up.gpus.cards))


@pytest.mark.parametrize("length", [0, 100, 1 << 16])
def test_a_start_makes_a_new_card_of_one_that_was_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    path = simulated_card("sim:1x1GiB", tmp_path, BUILD)
    made = path.read_bytes()
    assert simulated_card("sim:1x1GiB", tmp_path, BUILD).read_bytes() == made
    path.write_bytes(made[:length])
    with caplog.at_level(logging.WARNING):
        again = simulated_card("sim:1x1GiB", tmp_path, BUILD).read_bytes()
    assert len(again) == len(made)
    assert "was cut off" in caplog.text
