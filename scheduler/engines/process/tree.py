"""Processes and their descendants, read from /proc. Standard library only: the keeper runs on nothing else."""

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Mapping

from scheduler import clock
from scheduler.proc import EXHAUSTED, Stat, read
from scheduler.proc import stat as stat

TICKS = os.sysconf("SC_CLK_TCK")  # a second


def is_alive(pid: int, started: int) -> bool:
    found = stat(pid)
    return found is not None and found.started == started and found.living


Children = dict[int, list[Stat]]


def look() -> Children:
    """Every process of the host, zombies too, by its parent's pid. Takes a few milliseconds: look once for many."""
    children: Children = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := stat(name)) is not None:
            children.setdefault(found.parent, []).append(found)
    return children


def descendants(root: int, children: Children | None = None) -> list[Stat]:
    """Every living process below `root`, without it."""
    children = look() if children is None else children
    result: list[Stat] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        queue += [each.pid for each in below]
        result += [each for each in below if each.living]
    return result


def uses(roots: Mapping[str, tuple[int, int]]) -> dict[str, tuple[float, int]]:
    """Of what is below each living root (pid and start): seconds of processors so far, and bytes of RAM.

    RAM that processes share counts for each of them: the kernel's fairer figure takes it a look at every page.
    """
    children = look()
    living = {each.pid: each for below in children.values() for each in below}
    found = {}
    for name, (pid, started) in roots.items():
        root = living.get(pid)
        if root is None or root.started != started or not root.living:
            continue
        below = descendants(pid, children)
        ticks = root.ended_ticks + sum(each.ticks + each.ended_ticks for each in below)
        found[name] = ticks / TICKS, sum(each.pages for each in below) * mmap.PAGESIZE
    return found


def is_below(pid: int, root: int) -> bool:
    """Whether `pid` descends from `root`."""
    while pid > 1:
        found = stat(pid)
        if found is None:
            return False
        if found.parent == root:
            return True
        pid = found.parent
    return False


def of_session(leader: int) -> list[Stat]:
    """Every living process of the session that this one began, and it."""
    return [each for below in look().values() for each in below if each.session == leader and each.living]


def hang_up(leader: int, patience: float) -> None:
    """Ends a session: SIGHUP, and SIGKILL for what is left after `patience` seconds. Blocking."""
    signal_each(of_session(leader), signal.SIGHUP)
    signal_each(of_session(leader), signal.SIGCONT)
    deadline = clock.monotonic() + patience
    while left := of_session(leader):
        if clock.monotonic() > deadline:
            signal_each(left, signal.SIGKILL)
            return
        time.sleep(0.05)


def hang_up_alone(pid: int) -> None:
    """SIGHUP for this one, which is ours to signal. What it has left running goes on, as after a login by ssh."""
    if (found := stat(pid)) is not None:
        signal_each([found], signal.SIGHUP)
        signal_each([found], signal.SIGCONT)


def with_environment(entry: str) -> list[Stat]:
    """Living processes, of those that we may look into, that were started with this "NAME=value".

    Raises OSError where the host lets nobody look now.
    """
    wanted = entry.encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if wanted in read(name, "environ").split(b"\0"):
                found.append(stat(name))
        except OSError as error:  # it has ended, or is not ours
            if error.errno in EXHAUSTED:
                raise
    return [each for each in found if each is not None and each.living]


def signal_each(processes: list[Stat], number: int) -> None:
    for each in processes:
        # Between the look and the signal one may have ended and its pid gone to another: start times tell them apart.
        if is_alive(each.pid, each.started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, number)


def freeze(root: int, patience: float = 10.0) -> None:
    """Stops everything below `root`: looks again until no process that could fork is left running.

    One that is inside a system call that cannot be interrupted, or has to wait for a processor, is waited for,
    `patience` seconds at most; it stops as soon as it can. Where the host lets nobody look any more (OSError: there are
    no descriptors) whoever was stopped goes on: half of it would stand still, and nobody would know.
    """
    stopped: set[int] = set()
    deadline = clock.monotonic() + patience
    try:
        while running := [each for each in descendants(root) if each.state not in "Tt"]:
            stopped.update(each.pid for each in running)
            signal_each(running, signal.SIGSTOP)
            if clock.monotonic() > deadline:
                return
            # Whoever has called vfork sleeps so until its child is another program: one stopped before that goes on.
            asleep = {each.pid for each in running if each.state == "D"}
            if asleep:
                signal_each([each for each in descendants(root) if each.parent in asleep], signal.SIGCONT)
            time.sleep(0.001)
    except OSError:
        for pid in stopped:  # without a look: who is stopped does not end by itself, so the pid is theirs
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        raise


def end(root: int, number: int) -> None:
    """Sends everything below `root` a signal."""
    signal_each(descendants(root), number)


def thaw(root: int) -> None:
    signal_each(descendants(root), signal.SIGCONT)


def is_frozen(root: int, children: Children | None = None) -> bool:
    below = descendants(root, children)
    return bool(below) and all(each.state in "Tt" for each in below)
