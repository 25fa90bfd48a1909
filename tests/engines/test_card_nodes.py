"""The device nodes of cards inside a container that runs: made and removed from outside, by no other name left."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.engines.docker.engine import CARD_NODES

ZERO = "/dev/zero"  # stands for a card's node
# A /dev of its own, as a container has; it says so, and waits.
INSIDE = "mount -t tmpfs none /dev && mkdir /dev/deep && echo there && read _"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="enters namespaces: needs root")


@pytest.fixture
def inside() -> Iterator[Path]:
    """The container's root, as the host sees it."""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", INSIDE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        if process.stdout.readline() != "there\n":
            pytest.skip("this machine makes no mount namespaces")
        yield Path(f"/proc/{process.pid}/root")
        process.kill()


def change(root: Path, what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(CARD_NODES), root.parent.name, what, ZERO]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_node_is_given_and_taken_by_every_name_that_it_has_there(inside: Path) -> None:
    dev = inside / "dev"
    for _ in range(2):  # it is there already
        assert change(inside, "give").returncode == 0
    made = (dev / "zero").lstat()
    assert (stat.S_ISCHR(made.st_mode), made.st_rdev, made.st_mode & 0o777) == (True, os.stat(ZERO).st_rdev, 0o666)
    (dev / "link").hardlink_to(dev / "zero")
    (dev / "zero").rename(dev / "deep" / "hidden")
    for _ in range(2):
        assert change(inside, "take").returncode == 0
    assert [each for each in dev.rglob("*") if each.is_char_device()] == []
    assert os.path.exists(ZERO)


@pytest.mark.parametrize("what", ["link", "file"])
def test_what_a_program_put_in_its_place_is_not_followed(inside: Path, what: str, tmp_path: Path) -> None:
    node = inside / "dev" / "zero"
    if what == "link":
        node.symlink_to(tmp_path / "elsewhere")
    else:
        node.write_text("mine")
    done = change(inside, "give")
    assert (done.returncode, "File exists" in done.stderr) == (1, True)
    assert not (tmp_path / "elsewhere").exists()
    assert change(inside, "take").returncode == 0
    assert os.path.lexists(node)
