"""Trainings of two ranks on two GPUs: turns by weight, limits, moves, and losses equal to those of undisturbed ones.

    python -m tests.gpu.ranked [--gpus SPEC] [--seconds S] [--out FOLDER] [KIND …]

KIND: ddp, fsdp, two (job_ranks.py says what they are); sim on the simulated card. In an appliance with the process
engine: one alone beside the same without the appliance; two at 300/100; one at a limit of 30; one without `movable` is
not moved, one with it is, three times; random changes and pauses. Writes FOLDER/ranked.json (FOLDER: $OUT) and prints
each figure as it comes; exits 1 if anything is wrong. Needs no Docker.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.support.appliance import ROOT, Appliance, until

GIB = 1 << 30
LONG = 120.0  # seconds in which two ranks have imported PyTorch and begun
CYCLE = 1.0
# NVLink multicast is not every machine's to use.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
ENVIRONMENT = NO_MULTICAST | {"PYTHONPATH": str(ROOT), "USER": "root", "HOME": "/tmp"}
PARTS = ["native", "turns", "limit", "moved", "random"]
DEEDS = ("weight", "limit", "pause")


class Job:
    def __init__(self, folder: Path, kind: str, name: str) -> None:
        self.folder, self.kind, self.name = folder, kind, name
        self.words = [sys.executable, str(ROOT / "tests/gpu/job_ranks.py"), kind, str(folder), name]

    def lines(self) -> list[tuple[float, int, str]]:
        """Time, steps, loss."""
        path = self.folder / f"{self.name}.done"
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(float(at), int(count), loss) for at, count, loss in map(str.split, whole)]

    def done_at(self, at: float) -> float:
        """Steps by then, in proportion between two lines."""
        before, after = (0.0, 0.0), (at, 0.0)
        for time_, count, _ in self.lines():
            after = time_, float(count)
            if time_ > at:
                break
            before = after
        span = after[0] - before[0]
        return before[1] + (after[1] - before[1]) * min(1.0, (at - before[0]) / span) if span > 0 else before[1]

    def rate(self, begin: float, end: float) -> float:
        return (self.done_at(end) - self.done_at(begin)) / (end - begin)

    def gap(self, begin: float, end: float) -> float:
        """The longest time between two lines."""
        times = [at for at, _, _ in self.lines() if begin <= at <= end]
        return max((later - at for at, later in pairwise(times)), default=end - begin)

    def begins(self) -> None:
        until(lambda: len(self.lines()) > 2, LONG)

    def goes_on(self) -> None:
        before = len(self.lines())
        until(lambda: len(self.lines()) > before + 1, LONG)


class Contained(Job):
    def __init__(self, appliance: Appliance, folder: Path, kind: str, name: str, quota: float, **fields: Any) -> None:
        super().__init__(folder, kind, name)
        self.appliance = appliance
        made = appliance.launch(
            *self.words, name=name, gpu_memory=int(quota * GIB), gpus=2, env=ENVIRONMENT, **fields
        )  # fmt: skip
        self.path = f"containers/{made['id']}/"

    def begins(self) -> None:
        until(lambda: len(self.lines()) > 2 or self.get()["finished_at"], LONG)
        assert not self.get()["finished_at"], self.get()["reason"]

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = self.appliance.api("GET", self.path)
        return found

    def change(self, **fields: Any) -> None:
        self.appliance.api("PATCH", self.path, fields)

    def do(self, what: str, **body: Any) -> tuple[int, str]:
        """Status and message."""
        try:
            return 200, self.appliance.api("POST", f"{self.path}{what}/", body).get("message", "")
        except httpx.HTTPStatusError as error:
            return error.response.status_code, error.response.json()["error"]["message"]

    def end(self) -> None:
        self.do("kill")
        until(lambda: self.get()["finished_at"])


class Scene:
    def __init__(self, appliance: Appliance, folder: Path, kind: str, seconds: float, quota: float) -> None:
        self.appliance, self.folder, self.kind, self.seconds, self.quota = appliance, folder, kind, seconds, quota
        self.found: dict[str, Any] = {"wrong": []}
        self.jobs: list[Contained] = []
        self.losses: dict[int, str] = {}  # of an undisturbed one

    def check(self, name: str, value: Any, fine: bool) -> None:
        self.found[name] = value
        self.found["wrong"] += [] if fine else [name]
        print(f"{self.kind}: {name}: {value}{'' if fine else '   WRONG'}", flush=True)

    def launch(self, name: str, **fields: Any) -> Contained:
        self.jobs.append(job := Contained(self.appliance, self.folder, self.kind, name, self.quota, **fields))
        job.begins()
        return job

    def watch(self, *jobs: Job, settle: float = 4.0) -> tuple[float, float]:
        time.sleep(settle)
        begin = time.time()
        time.sleep(self.seconds)
        for job in jobs:
            until(lambda: job.lines()[-1][0] > begin + self.seconds, LONG)  # noqa: B023
        return begin, begin + self.seconds

    def native(self, name: str) -> float:
        """Steps a second without the appliance."""
        job = Job(self.folder, self.kind, name)
        environment = {**os.environ, **ENVIRONMENT}
        with subprocess.Popen(job.words, env=environment, start_new_session=True) as process:
            try:
                job.begins()
                rate = job.rate(*self.watch(job))
                time.sleep(3 * self.seconds)  # what is compared with it is disturbed later
                self.note_losses(job)
            finally:
                os.killpg(process.pid, 9)
        return rate

    def note_losses(self, job: Job) -> None:
        self.losses |= {count: loss for _, count, loss in job.lines()}

    def equal(self, job: Job) -> None:
        """Its losses, as far as the undisturbed one went."""
        its = [(count, loss) for _, count, loss in job.lines() if count in self.losses]
        others = [
            f"step {count}: {loss}, not {self.losses[count]}" for count, loss in its if loss != self.losses[count]
        ]
        self.check(f"losses of {job.name}", others[:1] or f"{len(its)} equal", not others and bool(its))

    def all_of_it(self, parts: list[str]) -> None:
        quick = self.native("native") if "native" in parts else 0.0
        one = self.launch("one", compute_weight=300)
        ranks = until(lambda: self.get_ranks(one))
        self.check("ranks", ranks, [each["rank"] for each in ranks] == [0, 1])
        alone = one.rate(*self.watch(one))
        if quick:
            self.check("native steps/s", round(quick, 2), True)
            self.check("alone, of native", round(alone / quick, 4), alone / quick > 0.97)
        else:
            self.note_losses(one)
        if "turns" in parts:
            self.turns(one, alone)
        if "limit" in parts:
            one.change(compute_limit=30)
            limited = one.rate(*self.watch(one)) / alone
            self.check("limit 30", round(limited, 3), abs(limited - 0.3) < 0.03)
            one.change(compute_limit=None)
        if "moved" in parts:
            status, why = one.do("pause", free_memory=True)
            self.check("without movable", [status, why], status == 409)
            one.goes_on()
            self.moved()
        if "random" in parts:
            self.random(one)
        self.equal(one)
        one.end()

    def turns(self, one: Contained, alone: float) -> None:
        two = self.launch("two", compute_weight=100)
        span = self.watch(one, two, settle=8.0)
        rates = [job.rate(*span) / alone for job in (one, two)]
        its = [rate / sum(rates) for rate in rates]
        self.check("300/100: parts", [round(part, 3) for part in its], abs(its[0] - 0.75) < 0.05)
        self.check("300/100: work in sum", round(sum(rates), 3), sum(rates) > 0.95)
        gaps = [round(job.gap(*span), 2) for job in (one, two)]
        self.check("300/100: longest gap", gaps, max(gaps) < 2 * CYCLE)
        why = [job.get()["no_turns"] for job in (one, two)]
        self.check("no_turns", why, why == ["", ""])
        self.equal(two)
        two.end()

    def get_ranks(self, job: Contained) -> Any:
        return job.get()["ranks"] if len(job.get()["ranks"]) == 2 else None

    def moved(self) -> None:
        job = self.launch("moved", movable=True, compute_weight=100)
        for number in range(3):
            begun = time.monotonic()
            out, back = job.do("pause", free_memory=True), job.do("resume")
            job.goes_on()
            self.check(f"moved {number}", [*out, *back, round(time.monotonic() - begun, 1)], out[0] == back[0] == 200)
        self.equal(job)
        job.end()

    def random(self, one: Contained) -> None:
        draws, two = random.Random(7), self.launch("other")
        for _ in range(12):
            job, deed = draws.choice([one, two]), draws.choice(DEEDS)
            if deed == "pause":
                job.do("pause")
                time.sleep(draws.random())
                job.do("resume")
            elif deed == "weight":
                job.change(compute_weight=draws.choice([50, 100, 300]))
            else:
                job.change(compute_limit=draws.choice([None, 30, 60]))
            time.sleep(draws.random())
        for job in (one, two):
            job.change(compute_limit=None)
            job.goes_on()
        self.equal(two)
        two.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--gpus", default="nvidia")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--quota", type=float, default=16.0, help="GiB on each GPU")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    options = parser.parse_args()
    everything: dict[str, Any] = {}
    for kind in options.kinds or ["ddp", "fsdp"]:
        folder = Path(tempfile.mkdtemp())
        appliance = Appliance(folder / "home", options.gpus, GPUSHARE_COMPUTE="turns")
        scene = Scene(appliance, folder, kind, options.seconds, options.quota)
        try:
            scene.all_of_it([part for part in options.parts if part != "native" or kind != "sim"])
        except Exception as error:
            scene.check("it ended with", repr(error), fine=False)
            scene.found["traceback"] = traceback.format_exc()[-4000:]
            scene.found["containers"] = [job.get() | {"env": None} for job in scene.jobs]
            token = {"Authorization": f"Token {appliance.token}"}
            for job in scene.jobs:
                print(httpx.get(f"{appliance.url}/api/v1/{job.path}logs/", headers=token).text[-2000:])
        finally:
            everything[kind] = scene.found
            (options.out / "ranked.json").write_text(json.dumps(everything, indent=1))
            log = folder / "home.log"
            (options.out / f"appliance-{kind}.log").write_bytes(log.read_bytes()[-200_000:] if log.exists() else b"")
            appliance.close()
    return 1 if any(found["wrong"] for found in everything.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
