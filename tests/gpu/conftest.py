"""Tests on a real GPU: the whole appliance, a real Docker engine, PyTorch in containers. Skipped without an NVIDIA GPU.

`tests/gpu/run` prepares the machine (see there) and names what these need in the environment.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gpu import host_image
from tests.gpu.host_image import IMAGE, PYTHON
from tests.support.running import children, comm

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).parent
VOLUMES = [*host_image.VOLUMES, f"{HERE}:/jobs:ro"]


def _nvidia() -> bool:
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not _nvidia():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


@pytest.fixture(scope="session")
def image() -> str:
    return host_image.build()


class Appliance:
    """A running appliance, spoken to by REST."""

    def __init__(self, home: Path, gpus: str, log: Path, **environ: str) -> None:
        self.home, self.gpus, self._log, self._environ = home, gpus, log, environ
        self.program = ["manage.py"]  # what Python is to run: "up" follows
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            **os.environ,
            "GPUSHARE_BUDGET_REQUESTS_A_SECOND": "10000",  # a dozen programs are waited for without a pause
            "GPUSHARE_HOME": str(self.home),
            "GPUSHARE_GPUS": self.gpus,
            "GPUSHARE_ENGINE": "docker",
            "GPUSHARE_VOLUME_ROOTS": " ".join([*host_image.ROOTS, str(HERE)]),
            "PORT": "8123",
            **self._environ,
        }
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, "up"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        self.until(lambda: (self.home / "admin-token").exists(), "the admin token", 120)
        token = (self.home / "admin-token").read_text().strip()
        self.client = httpx.Client(
            base_url="http://127.0.0.1:8123", headers={"Authorization": f"Token {token}"}, timeout=30
        )
        self.until(self.ready, "the appliance to be ready", 120)

    def ready(self) -> bool:
        assert self.process is None or self.process.poll() is None, f"the appliance has ended; {self._log} says why"
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def part(self, name: str) -> int:
        """The process id of "web" or "scheduler"."""
        assert self.process is not None
        return next(pid for pid in children(self.process.pid) if comm(pid) == name)

    def stop(self) -> None:
        assert self.process is not None
        self.client.close()
        self.process.terminate()
        self.process.wait(30)

    def launch(self, name: str, job: str, *arguments: str, **fields: Any) -> str:
        """Launches /jobs/JOB with the host's Python and returns the container's id."""
        body = {
            "name": name,
            "image": IMAGE,
            "command": [PYTHON, f"/jobs/{job}", *arguments],
            "volumes": VOLUMES,
            **fields,
        }
        answer = self.client.post("/api/v1/containers/", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def command(self, container: str, kind: str, within: float = 120, **body: Any) -> tuple[bool, str]:
        """Whether it was done, and what the answer says; waits for the scheduler to have finished it."""
        answer = self.client.post(f"/api/v1/containers/{container}/{kind}/", json=body)
        if answer.status_code != 202:
            said = answer.json()
            return answer.is_success, said["message"] if answer.is_success else said["error"]["message"]
        path = f"/api/v1/commands/{answer.json()['command']}/"
        self.until(lambda: self.client.get(path).json()["done"], f"the {kind} to be done", within)
        command = self.client.get(path).json()
        return command["outcome"] == "done", command["message"]

    def get(self, container: str) -> dict[str, Any]:
        answer = self.client.get(f"/api/v1/containers/{container}/")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def logs(self, container: str) -> str:
        return self.client.get(f"/api/v1/containers/{container}/logs/").text

    def state_becomes(self, container: str, *states: str, timeout: float = 120) -> dict[str, Any]:
        self.until(lambda: self.get(container)["state"] in states, f"{container} to be {states}", timeout)
        return self.get(container)

    def says(self, container: str, text: str, within: float) -> None:
        def said() -> bool:
            logs, now = self.logs(container), self.get(container)
            assert text in logs or not now["finished_at"], f"it has ended without {text!r}: {now}\n{logs[-2000:]}"
            return text in logs

        self.until(said, f"{container} to say {text!r}", within)

    @staticmethod
    def until(holds: Callable[[], bool], what: str, timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        while not holds():
            assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
            time.sleep(0.05)


@pytest.fixture
def appliance(tmp_path: Path, image: str) -> Iterator[Appliance]:
    """The appliance on the real card, capped to 6 GiB."""
    results = Path(os.environ.get("GPU_TEST_RESULTS", str(tmp_path)))
    running = Appliance(tmp_path / "home", "nvidia:cap=6GiB", results / "appliance.log")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def record() -> Iterator[Callable[[str], None]]:
    """Writes a line into the kept log of this run (date, driver and versions first)."""
    folder = Path(os.environ.get("GPU_TEST_RESULTS", "/tmp"))
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    with (folder / "sharing.log").open("w") as file:

        def write(line: str) -> None:
            file.write(line + "\n")
            file.flush()

        write(f"date     {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}")
        write(f"card     {driver}")
        write(f"host     {platform.release()}, Python {platform.python_version()}")
        yield write
