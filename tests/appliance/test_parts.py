"""The parent of the parts, when the host has nothing left for a process."""

from __future__ import annotations

import subprocess
import sys

from tests.support.appliance import ROOT

SCRIPT = """
import os, signal
from appliance.parts import Part, Parts

fork, starts = os.fork, []

def scarce():
    starts.append(...)
    if len(starts) == 2:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()

def live():
    if len(starts) > 1:
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()

os.fork = scarce
with Parts(Part("one", live)) as parts:
    before = len(os.listdir("/proc/self/fd"))
    parts.wait()
    print("started", len(starts), "times; descriptors:", before, len(os.listdir("/proc/self/fd")))
"""


def test_part_that_cannot_be_forked_just_now_is_started_a_little_later():
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[1] == "3"
    assert words[-2] == words[-1]
    assert "cannot be started" in done.stderr
