"""Containers and plain processes that hold memory on a real card, and what it takes to move it."""

import itertools
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.conftest import HERE, VOLUMES, Appliance
from tests.gpu.host_image import PYTHON

GIB = 1 << 30
LONG = 120.0  # seconds
TOOK = re.compile(r"It took ([\d.]+) s")


class Job:
    """job_swap.py with this folder to talk by."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._numbers = itertools.count(1)

    def words(self, gib: float, *more: str, where: str = str(HERE)) -> list[str]:
        return [PYTHON, f"{where}/job_swap.py", str(self.folder), str(gib), *more]

    def said(self, number: int) -> str:
        """What it said to this question; empty while it has said nothing."""
        said = self.folder / "said"
        lines = said.read_text().split("\n")[:-1] if said.exists() else []
        return next((line.split()[1] for line in lines if line.split()[0] == str(number)), "")

    def is_right(self, within: float = LONG) -> None:
        """Every byte is as it was; it can answer only where it runs."""
        number = next(self._numbers)
        (self.folder / "asking").write_text(str(number))
        (self.folder / "asking").rename(self.folder / "ask")
        Appliance.until(lambda: bool(self.said(number)), f"an answer in {self.folder}", within)
        assert self.said(number) == "right"

    def holds(self) -> None:
        Appliance.until(lambda: bool(self.said(0)), f"{self.folder} to hold its memory", LONG)
        assert self.said(0) == "right"


class Held(Job):
    """In a container of the appliance."""

    def __init__(self, appliance: Appliance, folder: Path, gib: float, *more: str, **fields: Any) -> None:
        super().__init__(folder)
        self.appliance = appliance
        self.id = appliance.launch(
            folder.name, "job_swap.py", *self.words(gib, *more)[2:],
            volumes=[*VOLUMES, f"{folder}:{folder}"], **{"gpu_memory": int((gib + 3) * GIB), **fields},
        )  # fmt: skip
        self.holds()

    def out(self) -> float:
        """The seconds that it took by the scheduler's own clock, all steps together."""
        done, message = self.appliance.command(self.id, "pause", free_memory=True)
        assert done, message
        assert self.appliance.get(self.id)["state"] == "swapped"
        return self._took("swapped_out")

    def back(self) -> float:
        before = self._moves("swapped_in")
        done, message = self.appliance.command(self.id, "resume")
        assert done, message
        self.appliance.until(lambda: self._moves("swapped_in") > before, "it to be back", LONG)
        self.appliance.state_becomes(self.id, "running")
        return self._took("swapped_in")

    def end(self) -> None:
        self.appliance.command(self.id, "kill")
        self.appliance.state_becomes(self.id, "killed", "failed", "exited")

    def _moves(self, kind: str) -> int:
        return int(self._events(kind)["count"])

    def _took(self, kind: str) -> float:
        found = TOOK.search(self._events(kind)["results"][0]["detail"])
        assert found is not None
        return float(found[1])

    def _events(self, kind: str) -> dict[str, Any]:
        answer = self.appliance.client.get(f"/api/v1/allocations/?container={self.id}&kind={kind}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@contextmanager
def bare(folder: Path, gib: float) -> Iterator[tuple[Job, int]]:
    """Without a container, the shim and the scheduler; and its pid."""
    job = Job(folder)
    with (folder / "log").open("ab") as log, subprocess.Popen(job.words(gib), stdout=log, stderr=log) as process:
        try:
            job.holds()
            yield job, process.pid
        finally:
            process.kill()


def on_card() -> set[int]:
    """The host pids that NVIDIA's driver shows to hold memory."""
    words = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return {int(pid) for pid in subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()}


def card_empties() -> None:
    Appliance.until(lambda: not on_card(), "the card to be empty", LONG)
