"""Programs that compute on a real card, in containers and beside them, and what each has got done."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.conftest import HERE, VOLUMES, Appliance
from tests.gpu.host_image import PYTHON

GIB = 1 << 30
LONG = 180.0  # seconds in which a dozen programs have imported PyTorch and begun


class Job:
    """job_compute.py: computes while it is asked to. Its time is the clock's (time.time)."""

    def __init__(self, kind: str, folder: Path, name: str) -> None:
        self.kind, self.name, self.folder = kind, name, folder

    def words(self, where: str) -> list[str]:
        return [f"{where}/job_compute.py", self.kind, str(self.folder), self.name]

    @property
    def ready(self) -> bool:
        return (self.folder / f"{self.name}.ready").exists()

    def go(self, on: bool = True) -> None:
        path = self.folder / f"{self.name}.go"
        path.touch() if on else path.unlink(missing_ok=True)

    def lines(self) -> list[tuple[float, float]]:
        """Time and units, or the seconds of a burst."""
        text = (self.folder / f"{self.name}.done").read_text()
        return [(float(at), float(value)) for at, value in (line.split() for line in text.split("\n")[:-1])]

    def units_at(self, at: float) -> float:
        """Done by then, in proportion between two lines."""
        before, after = (0.0, 0.0), (at, 0.0)
        for line in self.lines():
            if line[0] > at:
                after = line
                break
            before = after = line
        span = after[0] - before[0]
        return before[1] + (after[1] - before[1]) * ((at - before[0]) / span if span > 0 else 0.0)

    def rate(self, begin: float, end: float) -> float:
        """Units a second."""
        return (self.units_at(end) - self.units_at(begin)) / (end - begin)

    def bursts(self, begin: float, end: float) -> list[float]:
        return sorted(took for at, took in self.lines() if begin <= at <= end)


class Contained(Job):
    def __init__(self, appliance: Appliance, kind: str, folder: Path, name: str, **fields: Any) -> None:
        super().__init__(kind, folder, name)
        self.appliance = appliance
        self.id = appliance.launch(
            name, "", command=[PYTHON, *self.words("/jobs")], volumes=[*VOLUMES, f"{folder}:{folder}"],
            **{"gpu_memory": 5 * GIB, "env": {"USER": "root"}, **fields},
        )  # fmt: skip

    def change(self, **fields: Any) -> None:
        answer = self.appliance.client.patch(f"/api/v1/containers/{self.id}/", json=fields)
        assert answer.is_success, answer.text
        want = {key: value for key, value in fields.items() if key.startswith("compute")}
        self.appliance.until(lambda: {key: self.appliance.get(self.id).get(key) for key in want} == want, "the change")

    def figures(self) -> dict[str, Any]:
        """What the appliance says of its part."""
        its = self.appliance.get(self.id)
        return {key: its.get(key) for key in ("state", "compute_weight", "compute_limit", "no_turns")}


def all_ready(appliance: Appliance, jobs: list[Contained]) -> None:
    """Or the output of one that has ended."""

    def ready() -> bool:
        for job in jobs:
            state = appliance.get(job.id)["state"]
            assert state in ("created", "running", "suspended"), f"{job.name} is {state}: {appliance.logs(job.id)}"
        return all(job.ready for job in jobs)

    appliance.until(ready, "the programs to be ready", LONG)


def share_by(appliance: Appliance, how: str) -> None:
    """ "turns" or "shared" on all GPUs."""
    for gpu in appliance.client.get("/api/v1/gpus/").json()["results"]:
        answer = appliance.client.patch(f"/api/v1/gpus/{gpu['uuid']}/", json={"compute": how})
        assert answer.is_success, answer.text


@contextmanager
def computing(*jobs: Job, settle: float) -> Iterator[None]:
    """These compute, and have settled for so many seconds."""
    for job in jobs:
        job.go()
    try:
        time.sleep(settle)
        yield
    finally:
        for job in jobs:
            job.go(False)
        time.sleep(0.5)


def measured(*jobs: Job, seconds: float, settle: float = 1.0) -> tuple[float, float]:
    """They compute together; the span of time that counts."""
    with computing(*jobs, settle=settle):
        begin = time.time()
        time.sleep(seconds + 0.3)
    return begin, begin + seconds


@contextmanager
def beside(kind: str, folder: Path, name: str) -> Iterator[Job]:
    """Without a container, the shim and the scheduler."""
    job = Job(kind, folder, name)
    with (folder / f"{name}.log").open("ab") as log:
        words = [PYTHON, *job.words(str(HERE))]
        with subprocess.Popen(words, stdout=log, stderr=log) as process:
            try:
                Appliance.until(lambda: job.ready, f"{name} to be ready: {folder}/{name}.log", LONG)
                yield job
            finally:
                process.kill()
