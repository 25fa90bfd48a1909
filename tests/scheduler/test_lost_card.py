"""A program on the simulated card can cut its file off: the scheduler goes on, and the card comes back."""

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.gpus import simulated_card
from tests.support.eventually import eventually
from tests.support.host import BUILD, Host, host

__all__ = ["host"]


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
    (gpu,) = host.up.gpus.cards
    assert host.up.service.is_drained(gpu)
    _, refused = await host.start_launch("true", gpu_memory=1 << 20)
    assert (await host.answer(refused)).code == "gpu_drained"
    with path.open("r+b") as card:
        card.write(whole)
    await eventually(lambda: list(host.up.measure.readings) == list(host.up.gpus.cards))
    await host.command("undrain-gpu", gpu=gpu)
    await host.until(await host.launch("true", gpu_memory=1 << 20), "exited")


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


def _link(path: Path, other: Path) -> None:
    path.symlink_to(other)


def _link_to_nothing(path: Path, other: Path) -> None:
    path.symlink_to(other.with_name("nothing"))


def _second_name(path: Path, other: Path) -> None:
    path.hardlink_to(other)


def _fifo(path: Path, other: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path, other: Path) -> None:
    (path / "with").mkdir(parents=True)


@pytest.mark.parametrize("put", [_link, _link_to_nothing, _second_name, _fifo, _folder])
def test_a_start_opens_nothing_that_a_program_put_in_the_cards_place(
    tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    """Programs that are root in a container may write the card's folder. Here another card is what they mean."""
    other = simulated_card("sim:1x1GiB", tmp_path / "another", BUILD)
    before = other.read_bytes()
    path = simulated_card("sim:1x1GiB", tmp_path, BUILD)
    path.unlink()
    put(path, other)
    assert simulated_card("sim:1x1GiB", tmp_path, BUILD) == path
    assert stat.S_ISREG(path.lstat().st_mode)
    assert path.stat().st_ino != other.stat().st_ino
    assert (other.read_bytes(), other.stat().st_nlink) == (before, 1)
    assert not other.with_name("nothing").exists()


def test_a_program_on_a_link_has_no_card(tmp_path: Path) -> None:
    """As a scheduler that lost its card and looks for it again."""
    path = simulated_card("sim:1x1GiB", tmp_path, BUILD)
    link = tmp_path / "link"
    link.symlink_to(path)
    said = [
        subprocess.run(
            [sys.executable, "-c", COUNT, str(BUILD)], env={**os.environ, "GPUSHARE_SIM": str(place)},
            text=True, capture_output=True, check=False,
        ).stdout.strip()
        for place in (path, link)
    ]  # fmt: skip
    assert said == ["0", "9"]  # NVML_SUCCESS, NVML_ERROR_DRIVER_NOT_LOADED


COUNT = """
import sys
from pathlib import Path
from shim import sim
print(sim.load_nvml(Path(sys.argv[1])).nvmlInit_v2())
"""
