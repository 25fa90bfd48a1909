"""What /proc tells of a process comes from one module, which asks a thread that lives."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import proc

ROOT = Path(__file__).resolve().parents[2]
# The first thread ends; of the others one ends at a line of input, and one goes on.
PROGRAM = """
import ctypes, os, sys, threading
def waits():
    sys.stdin.readline()
    print("one has ended", flush=True)
def goes_on():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        pass
    print(os.getpid(), short.native_id, flush=True)
    threading.Event().wait()
short = threading.Thread(target=waits)
short.start()
threading.Thread(target=goes_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def leaderless() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process whose first thread has ended, and the thread of it that ends next."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            pid, short = map(int, process.stdout.readline().split())
            assert pid == process.pid
            yield process, short
        finally:
            process.kill()


def test_every_file_is_read_of_a_thread_that_lives(leaderless) -> None:
    process, _ = leaderless
    assert Path(f"/proc/{process.pid}/maps").read_bytes() == b""  # so the kernel is asked in vain
    for name in ("maps", "environ", "cmdline", "mountinfo", "cgroup", "status"):
        assert proc.read(process.pid, name), name
    assert proc.link(process.pid, "exe") == os.path.realpath(sys.executable)
    (folder,) = proc.folders(process.pid)
    assert len(os.listdir(f"{folder}/fd")) >= 3
    assert os.listdir(f"{folder}/map_files")
    found = proc.stat(process.pid)
    assert found is not None
    assert (found.pid, found.living) == (process.pid, True)
    assert found.state in "RSD"
    assert min(found.pages, found.stack, found.code) > 0


def test_another_thread_is_asked_if_the_first_one_ends_meanwhile(leaderless) -> None:
    process, short = leaderless
    asked = proc.folders(process.pid)
    assert next(asked) == f"/proc/{short}"
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "one has ended\n"
    while os.path.exists(f"/proc/{process.pid}/task/{short}"):
        pass  # it prints that a moment before it has ended
    other = next(asked)
    assert other not in {f"/proc/{short}", f"/proc/{process.pid}"}
    assert next(asked, None) is None


def test_of_a_process_that_has_ended_there_is_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, all of it
    assert list(proc.folders(process.pid)) == []
    assert not proc.stat(process.pid).living
    process.wait()
    assert proc.stat(process.pid) is None
    with pytest.raises(ProcessLookupError):
        proc.read(process.pid, "maps")


def test_no_more_is_read_than_is_asked_for() -> None:
    assert len(proc.read(os.getpid(), "maps", 100)) == 100


def test_nothing_else_in_the_scheduler_reads_what_proc_tells_of_a_process() -> None:
    reads = re.compile(r"""["']/proc/(\{|%|["'] *[+%])|"/proc"\) */""")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "scheduler").rglob("*.py")
        if path.name not in ("proc.py", "card_nodes.py")  # the latter is a program of its own, without the appliance
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if reads.search(line)
    ]
    assert found == []
