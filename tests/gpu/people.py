"""Two people who compute on one card, one with many containers: what each gets.

    python -m tests.gpu.people FOLDER [--many 10] [--seconds 600] [--until S] [--kind gemm] [--gpus nvidia] [--card N]
        [--docker]

FOLDER keeps what is made. Without `--docker` (the engine that DOCKER_HOST names, or else a dockerd that it starts) they
are local processes. `--until`: seconds after which all of it has ended. `--gpus sim:1x16GiB --kind simulated` tries the
script without a GPU. Prints each person's part of the work that was done in each half minute (of the simulated card: of
its time), and what the appliance says.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.gpu import host_image
from tests.gpu.conftest import HERE, ROOT, Appliance
from tests.gpu.turned import LONG, Job, measured, share_by

GIB = 1 << 30
PASSWORD = "two people on one card"
WINDOW = 30.0  # seconds
ENDS = 20.0  # seconds in which all of them are killed
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
        self.within: host_image.Docker | None = None

    def launch(self, kind: str, folder: Path, card: str) -> None:
        self.jobs.append(Local(self, kind, folder, f"{self.name}-{len(self.jobs)}", card))

    def units(self, begin: float, end: float) -> float:
        return sum(job.rate(begin, end) for job in self.jobs)

    def figure(self, figure: str) -> float:
        return sum(gpu[figure] or 0.0 for job in self.jobs for gpu in self.appliance.get(job.id)["gpus"])


class Local(Job):
    """A local process in place of a container, if there is no engine."""

    def __init__(self, person: Person, kind: str, folder: Path, name: str, card: str) -> None:
        super().__init__(kind, folder, name)
        words = [sys.executable, *self.words(str(HERE))]
        fields: dict[str, Any] = {"image": "local"}
        if within := person.within:
            words[0] = host_image.PYTHON
            volumes = [*within.volumes, f"{folder}:{folder}"]
            environment = {"PYTHONPATH": host_image.PATHS, "USER": "root", "HOME": "/tmp"}
            fields = {"image": within.image, "volumes": volumes, "env": environment}
        if kind == "simulated":
            words = [str(ROOT / ".build/workload"), *["--bytes", "64MiB", "--check", "1MiB", "--compute", "3600"]]
            (folder / f"{name}.ready").touch()
        quota = GIB if kind == "simulated" else 3 * GIB
        answer = person.appliance.client.post(
            "/api/v1/containers/", headers=person.headers,
            json={"name": name, "command": words, "gpu_memory": quota, "gpus": [card], **fields},
        )  # fmt: skip
        assert answer.is_success, answer.text
        self.id = str(answer.json()["id"])


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--many", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--until", type=float, default=float("inf"))
    parser.add_argument("--kind", default="gemm")
    parser.add_argument("--gpus", default="nvidia")
    parser.add_argument("--card", type=int, default=0, help="which of the host's")
    parser.add_argument("--docker", action="store_true")
    its = parser.parse_args(arguments)
    its.ends = time.monotonic() + its.until - ENDS
    its.folder.mkdir(parents=True)
    with ExitStack() as stack:
        within = host_image.engine(stack) if its.docker else None
        folder = Path(tempfile.mkdtemp()) if within else its.folder  # of which there may be volumes
        folder.chmod(0o777)
        more = within.settings if within else {"GPUSHARE_ENGINE": "process"}
        appliance = Appliance(
            its.folder / "home", its.gpus, its.folder / "appliance.log", GPUSHARE_COMPUTE="turns",
            GPUSHARE_GIVE_WAY="off", **more,
        )  # fmt: skip
        appliance.start()
        stack.callback(appliance.stop)
        people = [Person(appliance, "ada"), Person(appliance, "bob")]
        card = appliance.client.get("/api/v1/gpus/").json()["results"][its.card]["uuid"]
        for number, person in enumerate(people):
            person.within = within
            for _ in range(its.many if number == 0 else 1):
                person.launch(its.kind, folder, card)
        try:
            play(appliance, people, its)
        finally:
            for job in [job for person in people for job in person.jobs]:
                appliance.command(job.id, "kill", grace=0)


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
    while time.time() - first < its.seconds and time.monotonic() + WINDOW < its.ends:
        begin, before = time.time(), [person.figure("had") for person in people]
        time.sleep(WINDOW)
        end = time.time() - 0.5
        parts = [person.units(begin, end) / alone for person in people] if not simulated else [
            (person.figure("had") - was) / (time.time() - begin) for person, was in zip(people, before, strict=True)
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
            f"{figure} {person.figure(figure):.1f} s" for figure in ("had_lately", "due_lately", "held_back_lately")
        )
        say(f"the appliance says of {person.name}'s last minute: {said}")


def shown(parts: Sequence[float]) -> str:
    return " : ".join(f"{100 * part / sum(parts):.1f}" for part in parts) + " %"


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
