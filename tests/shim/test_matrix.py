"""The programs that run on real GPUs (tests/gpu/shim), here with those that need no GPU code."""

import json
import subprocess
import sys

from tests.gpu.shim import training
from tests.gpu.shim.card import GIB
from tests.support.card import MIB, ROOT


def test_a_program_under_a_quota_that_it_fits_and_one_that_it_does_not(card, tmp_path):
    words = ["--gpus", "sim:1x16GiB", "--engine", "process", "--still", "0.5", "--out", str(tmp_path), "driver API"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.shim.matrix", *words],
        cwd=ROOT, env=card.env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    engine = json.loads((tmp_path / "matrix.json").read_text())["engines"]["process"]
    assert [(row["quota"], row["beyond"]) for row in engine["rows"]] == [
        ("fits", ""),
        ("tight", "CUDA_ERROR_OUT_OF_MEMORY"),
    ]
    assert {row["at rest"]["used"] for row in engine["rows"]} == {(1024 + 66) * MIB}
    assert engine["left"] == 0


def test_as_many_trainings_stand_by_as_the_card_has_room_for():
    assert training.fitting(5, each=10 * GIB, free=130 * GIB) == 5
    assert training.fitting(5, each=10 * GIB, free=68 * GIB) == 3
    assert training.fitting(40, each=1 * GIB, free=77 * GIB) == 36
    assert training.fitting(5, each=60 * GIB, free=20 * GIB) == 1
