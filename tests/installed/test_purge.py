"""What purging the package deletes: its own folders, and nothing that is mounted below them."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.appliance import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")


def purge(tmp_path: Path, before: str = "true") -> str:
    """Runs the package's script on folders of the test's, in a view of the file system of its own."""
    script = (ROOT / "packaging" / "deb" / "postrm").read_text()
    for name in ("/var/lib/gpushare", "/etc/gpushare", "/var/backups/gpushare"):
        script = script.replace(name, f"{tmp_path}{name}")
    (tmp_path / "postrm").write_text(script)
    words = f"{before} && PATH=/usr/bin:/bin sh {tmp_path}/postrm purge"
    return subprocess.run(["unshare", "-m", "sh", "-c", words], check=True, text=True, capture_output=True).stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "var" / "lib" / "gpushare"
    (home / "volumes" / "data").mkdir(parents=True)
    (tmp_path / "of-a-person").mkdir()
    (tmp_path / "of-a-person" / "work").touch()
    return home


def test_a_folder_of_the_host_that_is_mounted_there_keeps_what_it_has(tmp_path: Path, home: Path) -> None:
    said = purge(tmp_path, f"mount --bind {tmp_path}/of-a-person {home}/volumes/data")
    assert (tmp_path / "of-a-person" / "work").exists()
    assert f"{home} stays" in said
    assert f"{home}/volumes/data" in said


def test_without_a_mount_nothing_stays(tmp_path: Path, home: Path) -> None:
    assert "stays, as" not in purge(tmp_path)
    assert not home.exists()
    assert (tmp_path / "of-a-person" / "work").exists()
