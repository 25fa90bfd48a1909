"""A shell that starts programs by vfork sleeps until the new one has begun: also one whose child was stopped before."""

import errno
import os
import subprocess
from collections.abc import Iterator

import pytest

from scheduler.engines.process import tree
from tests.support.eventually import until


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[bytes]]:
    """Under a process that stays as it is, as a keeper does."""
    starts = "while :; do /bin/true; done"
    process = subprocess.Popen(["/bin/sh", "-c", f'sh -c "{starts}" & wait'], start_new_session=True)
    until(lambda: len(tree.descendants(process.pid)) >= 1)
    yield process
    for each in tree.descendants(process.pid):
        tree.signal_each([each], 9)
    process.kill()
    process.wait()


def test_it_is_frozen_each_time(shell: subprocess.Popen[bytes]) -> None:
    for _ in range(60):
        tree.freeze(shell.pid, patience=60.0)
        assert tree.is_frozen(shell.pid)
        tree.thaw(shell.pid)


def test_who_was_stopped_goes_on_where_nobody_can_look_any_more(
    shell: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [tree.look()]

    def no_descriptors() -> tree.Children:
        if not looks:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return looks.pop()

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(tree, "look", no_descriptors)
        with pytest.raises(OSError, match="Too many open files"):
            tree.freeze(shell.pid)
    # By what its ended programs used: each lives too short to be seen by a look at all processes of a large machine.
    (starts,) = (each for each in tree.descendants(shell.pid) if each.parent == shell.pid)
    until(lambda: (tree.stat(starts.pid) or starts).ended_ticks > starts.ended_ticks + 5)
