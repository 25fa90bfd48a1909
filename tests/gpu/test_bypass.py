"""What takes 80 % of a real card past the shim is reported within two seconds, and ended within three."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.gpu.conftest import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def test_it_is_reported_within_two_seconds_and_ended_within_three(record: Callable[[str], None]) -> None:
    words = [sys.executable, "-m", "benchmarks.bypass", "3", "nvidia"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    record(f"past the shim, 80 % of the card\n{done.stdout.rstrip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "shown" in done.stdout.splitlines()[0], "no way led past the shim, so nothing was tried"
