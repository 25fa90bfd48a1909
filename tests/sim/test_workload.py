"""The demo's program on the simulated card."""

import os
import re
from pathlib import Path

import pytest

from tests.support.card import MIB, Card, read_until


def test_every_byte_is_right(card: Card) -> None:
    result = card.run("--bytes", "48MiB", "--chunks", "3")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "checked 48 MiB: every byte is right" in result.stdout


def test_a_single_wrong_byte_is_found(card: Card, tmp_path: Path) -> None:
    process = card.start("--bytes", "4MiB", "--chunks", "1", "--until", str(tmp_path / "go"))
    read_until(process, "holding")
    folder = Path(f"/proc/{process.pid}/fd")
    (memory,) = (fd for fd in folder.iterdir() if "simulated GPU memory" in os.readlink(fd))
    with memory.open("r+b") as file:  # the chunk lies at its beginning
        file.seek(3 << 20)
        (byte,) = file.read(1)
        file.seek(3 << 20)
        file.write(bytes([byte ^ 1]))
    (tmp_path / "go").touch()
    assert "WRONG: 1 of 524288 words" in process.communicate(timeout=60)[0]
    assert process.returncode == 1


def test_it_takes_all_that_is_free_by_default(card: Card) -> None:
    process = card.start("--check", "1m", "--hold", "60")
    read_until(process, "holding")
    assert card.gpus()[0]["held"] == {process.pid: 5120 * MIB}


def test_out_of_memory_is_exit_status_2(card: Card) -> None:
    result = card.run("--bytes", "6GiB", "--chunks", "2")
    assert result.returncode == 2
    assert "out of memory: chunk 2 of 2, 3072 MiB" in result.stdout


def test_it_can_go_on_with_what_there_is(card: Card) -> None:
    result = card.run("--bytes", "6GiB", "--chunks", "2", "--go-on", "--check", "1m")
    assert result.returncode == 0
    assert "every byte is right" in result.stdout


def test_it_computes_and_tells_each_second_how_much(card: Card) -> None:
    result = card.run("--bytes", "2MiB", "--chunks", "1", "--compute", "2.2", "--kernel", "2", "--ahead", "200")
    assert result.returncode == 0, result.stdout
    units = [int(number) for number in re.findall(r"computed (\d+) units$", result.stdout, re.MULTILINE)]
    (sum_, seconds) = re.findall(r"computed (\d+) units in all, in ([\d.]+) s", result.stdout)[0]
    assert len(units) == 3
    assert sum(units) == int(sum_)
    # Its last 200 units take until after the time is over.
    assert float(seconds) >= 2.2
    assert int(sum_) == pytest.approx(float(seconds) / 0.002, rel=0.02)
    assert "every byte is right" in result.stdout


def test_it_computes_a_little_of_each_second_like_a_notebook(card: Card) -> None:
    result = card.run("--bytes", "2MiB", "--chunks", "1", "--compute", "1.3", "--every", "50")
    bursts = [float(number) for number in re.findall(r"computed 50 units in ([\d.]+) ms", result.stdout)]
    assert len(bursts) == 2
    assert min(bursts) >= 50
    assert "computed 100 units in all, in 1." in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--bytes", "0"],
        ["--bytes", "-1"],
        ["--chunks", "x"],
        ["--hold", "nan"],
        ["--kernel", "0"],
        ["--every", "2000"],
        ["more"],
    ],
)
def test_wrong_usage_says_what_is_wrong(card: Card, words: list[str]) -> None:
    result = card.run(*words)
    assert result.returncode == 64
    assert words[-1] in result.stderr
    assert "usage: workload" in result.stderr


def test_without_a_card_it_says_so(card: Card) -> None:
    result = card.run(GPUSHARE_SIM="/nonexistent")
    assert result.returncode == 1
    assert "CUDA_ERROR_NO_DEVICE" in result.stdout
