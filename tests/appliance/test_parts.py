"""The parent of the parts: when the host has nothing left for a process, and when it dies itself."""

import subprocess
import sys

from tests.support.appliance import ROOT

SCRIPT = """
import os, signal
from appliance.running.parts import Part, Parts

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


ORPHAN = """
import ctypes, os, signal, time
from appliance.running.parts import Part, Parts, tell_started

def live():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it hears of its parent's death, and goes on for a moment
    parent = os.getppid()
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.001)
    tell_started()

received = []
signal.signal(signal.SIGUSR1, lambda *_: received.append("received"))
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans are ours
if os.fork() == 0:
    with Parts(Part("one", live)) as parts:
        parts.wait()
statuses = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)]
print(statuses, received)
"""


def test_part_whose_parent_has_died_tells_nobody_else_that_it_has_started():
    done = subprocess.run([sys.executable, "-c", ORPHAN], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[-9, 0] []\n", done.stderr
