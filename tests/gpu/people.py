"""Two people who compute on one card, one with many containers: what each gets. Needs no Docker: local processes.

    python -m tests.gpu.people FOLDER [--many 10] [--seconds 300] [--kind gemm] [--gpus nvidia]

FOLDER keeps what is made. `--gpus sim:1x16GiB --kind simulated` tries the script without a GPU. Prints each person's
part of the work that was done in each half minute (of the simulated card: of its time), and what the appliance says.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.gpu.conftest import HERE, ROOT, Appliance
from tests.gpu.turned import LONG, Job, measured, share_by

GIB = 1 << 30
PASSWORD = "two people on one card"
WINDOW = 30.0  # seconds
SETTLE = 30.0  # until NVML has named each of them


class Person:
    def __init__(self, appliance: Appliance, name: str) -> None:
        self.name, self.appliance = name, appliance
        appliance.client.post("/api/v1/people/", json={"username": name, "password": PASSWORD}).raise_for_status()
        answer = httpx.post(
            appliance.client.base_url.join("/api/v1/sign-in/"),
            json={"username": name, "password": PASSWORD},
            timeout=30,
        )
        self.headers = {"Authorization": f"Token {answer.raise_for_status().json()['key']}"}
        self.jobs: list[Local] = []

    def launch(self, kind: str, folder: Path) -> None:
        self.jobs.append(Local(self, kind, folder, f"{self.name}-{len(self.jobs)}"))

    def units(self, begin: float, end: float) -> float:
        return sum(job.rate(begin, end) for job in self.jobs)

    def told(self, figure: str) -> float:
        return sum(gpu[figure] or 0.0 for job in self.jobs for gpu in self.appliance.get(job.id)["gpus"])


class Local(Job):
    """A local process in place of a container."""

    def __init__(self, person: Person, kind: str, folder: Path, name: str) -> None:
        super().__init__(kind, folder, name)
        words = [sys.executable, *self.words(str(HERE))]
        if kind == "simulated":
            words = [str(ROOT / ".build/workload"), *["--bytes", "64MiB", "--check", "1MiB", "--compute", "3600"]]
            (folder / f"{name}.ready").touch()
        quota = GIB if kind == "simulated" else 3 * GIB
        answer = person.appliance.client.post(
            "/api/v1/containers/", headers=person.headers,
            json={"name": name, "image": "local", "command": words, "gpu_memory": quota},
        )  # fmt: skip
        assert answer.is_success, answer.text
        self.id = str(answer.json()["id"])


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--many", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--kind", default="gemm")
    parser.add_argument("--gpus", default="nvidia")
    its = parser.parse_args(arguments)
    its.folder.mkdir(parents=True)
    appliance = Appliance(
        its.folder / "home", its.gpus, its.folder / "appliance.log", GPUSHARE_ENGINE="process",
        GPUSHARE_COMPUTE="turns", GPUSHARE_GIVE_WAY="off",
    )  # fmt: skip
    appliance.start()
    try:
        people = [Person(appliance, "ada"), Person(appliance, "bob")]
        for _ in range(its.many):
            people[0].launch(its.kind, its.folder)
        people[1].launch(its.kind, its.folder)
        play(appliance, people, its)
        for job in [job for person in people for job in person.jobs]:
            appliance.command(job.id, "kill", grace=0)
    finally:
        appliance.stop()


def play(appliance: Appliance, people: list[Person], its: Any) -> None:
    begun, jobs = time.monotonic(), [job for person in people for job in person.jobs]
    appliance.until(lambda: all(job.ready for job in jobs), "the programs to be ready", LONG)
    say(f"{len(jobs)} programs ready in {time.monotonic() - begun:.0f} s: {its.many} of ada's, 1 of bob's")
    alone, simulated = 1.0, its.kind == "simulated"
    if not simulated:
        share_by(appliance, "turns")
        alone = people[1].jobs[0].rate(*measured(people[1].jobs[0], seconds=5, settle=2))
        say(f"bob's alone: {alone:.1f} a second")
    for job in jobs:
        job.go()
    time.sleep(SETTLE)
    first, worst = time.time(), 0.0
    while time.time() - first < its.seconds:
        begin, before = time.time(), [person.told("had") for person in people]
        time.sleep(WINDOW)
        end = time.time() - 0.5
        parts = [person.units(begin, end) / alone for person in people] if not simulated else [
            (person.told("had") - was) / (time.time() - begin) for person, was in zip(people, before, strict=True)
        ]  # fmt: skip
        worst = max(worst, abs(parts[0] / sum(parts) - 0.5))
        say(f"{begin - first:4.0f} s  {shown(parts)}, in sum {sum(parts):.3f}")
    if not simulated:
        parts = [person.units(first, end) / alone for person in people]
        say(f"in {end - first:.0f} s  {shown(parts)}, in sum {sum(parts):.3f} of one alone; worst {worst:.3f} off")
        each = ", ".join(f"{100 * job.rate(first, end) / alone:.2f}" for job in people[0].jobs)
        say(f"each of ada's: {each} %")
    for person in people:
        said = ", ".join(
            f"{figure} {person.told(figure):.1f} s" for figure in ("had_lately", "due_lately", "held_back_lately")
        )
        say(f"the appliance says of {person.name}'s last minute: {said}")


def shown(parts: Sequence[float]) -> str:
    return " : ".join(f"{100 * part / sum(parts):.1f}" for part in parts) + " %"


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
