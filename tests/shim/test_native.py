"""The C tests of lease, ledger and client, plain and under the sanitizers; a short run of the fuzzers."""

import shutil
import subprocess
import sys

import pytest

from tests.support.card import ROOT


@pytest.mark.parametrize("target", ["asan", "tsan"])
def test_in_c_under_a_sanitizer(target):
    if not shutil.which("clang"):
        pytest.skip("clang is not installed")
    ended = subprocess.run(["make", "-s", "-C", ROOT / "shim", target], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_in_c_with_either_compiler(compiler, tmp_path):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    words = ["make", "-s", "-C", ROOT / "shim", "test", f"CLANG={compiler}", f"BUILD={tmp_path}"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_shims_frame_parser_takes_whatever_comes():
    if not shutil.which("clang"):
        pytest.skip("clang is not installed")
    ended = subprocess.run([ROOT / "shim/tests/fuzz", "20000"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_schedulers_frame_parser_takes_whatever_comes():
    words = [sys.executable, "-m", "tests.shim.fuzz_wire", "20000"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
