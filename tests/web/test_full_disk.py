"""The appliance's own disk is full: what is there is shown, what cannot be written is refused, nothing is lost."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.appliance import ROOT, Appliance, until
from tests.support.disk import fill, small_disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Appliance]:
    """An appliance whose home is a disk of 16 MiB."""
    with small_disk(tmp_path / "var", "16m", "mode=755") as home:
        running = Appliance(home)
        yield running
        running.close()


def status(appliance: Appliance, method: str, path: str, body: object) -> int:
    try:
        appliance.api(method, path, body)
    except httpx.HTTPStatusError as error:
        if error.response.json()["error"]["code"] != "database_away":
            raise
        return error.response.status_code
    return 200


def test_a_full_disk_is_503_and_all_is_well_once_there_is_room(small: Appliance) -> None:
    living = small.launch("sleep", "600", name="living", gpu_memory="64MiB")
    path = f"containers/{living['id']}/"
    fill(small.home)
    # SQLite still has room in its log at first.
    until(lambda: status(small, "PATCH", path, {"priority": 5}) == 503)
    refused = {"image": "local", "command": ["true"], "name": "refused"}
    assert status(small, "POST", "containers/", refused) == 503
    assert small.named("living")["state"] == "running"
    (small.home / "filler").unlink()
    until(lambda: status(small, "POST", "containers/", refused) == 200)  # nothing of the first try is in the way
    assert small.api("POST", f"{path}kill/", {})["state"] == "killed"
    environment = {**os.environ, "GPUSHARE_HOME": str(small.home), "GPUSHARE_GPUS": "sim:1x1GiB"}
    subprocess.run([sys.executable, "manage.py", "verify_audit"], cwd=ROOT, env=environment, check=True, timeout=60)
