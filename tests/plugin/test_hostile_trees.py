"""Who is root in a container may put any tree into the folder that it got, and an image may have one at that place."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.plugin.folders import Folders

DEEP = 1500  # folders in each other: more than Python's recursion goes, and fewer than a path has room for


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    subprocess.run(["rm", "-rf", "--", str(tmp_path)], check=True)  # pytest itself cannot


def a_deep_tree(top: Path) -> None:
    top.mkdir(parents=True)
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("a", dir_fd=here)
        below = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


async def test_deep_tree_is_taken_away(place: Path) -> None:
    folders = Folders(place / "mounted", place / "shim")
    a_deep_tree(folders.of("deep"))
    await folders.take_away("deep")
    assert folders.left_by([]) == []


async def test_link_is_not_followed(place: Path) -> None:
    folders = Folders(place / "mounted", place / "shim")
    (place / "others").mkdir()
    (place / "others" / "file").touch()
    folders.of("linked").mkdir()
    (folders.of("linked") / "out").symlink_to(place / "others")
    await folders.take_away("linked")
    assert folders.left_by([]) == []
    assert (place / "others" / "file").exists()
