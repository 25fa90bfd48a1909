"""PyTorch moved between two cards, ten times, every byte looked at: by the bare calls, and by an appliance.

    python -m tests.gpu.moved [--gpus SPEC] [--sizes GIB …] [--times N] [--out FOLDER] [bare] [appliance]

`bare`: the driver's calls alone, with each way to name the cards (all of the host, its own), of a program that sees all
cards, or its own by number or UUID; one that has only initialised CUDA; seconds out and in. `appliance`: the process
engine, `POST containers/ID/move/`, of a program that sees all cards; one that sees its own by CUDA_VISIBLE_DEVICES is
moved, or comes back where it was; then a drained card is emptied of three. Writes FOLDER/moved.json (FOLDER: $OUT),
prints each figure as it comes, exits 1 if anything is wrong. Needs two cards of one model, PyTorch, and no Docker.
`--gpus sim:2x8GiB` tries it on simulated cards.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from scheduler.gpus import uuid_bytes
from tests.gpu.shim import NO_MULTICAST
from tests.support.appliance import ROOT, Appliance, until

GIB = 1 << 30
LONG = 180.0
JOB = ROOT / "tests/gpu/job_card.py"
WORKER = ROOT / "scheduler/card/worker.py"
# Where this Python finds what it imports, a container's must too: the scheduler hands on PATH and LD_LIBRARY_PATH alone.
PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = NO_MULTICAST | {"PYTHONPATH": PATHS, "USER": "root", "HOME": "/tmp"}
SLOWER = 1.15  # times what the bare calls take


class Found:
    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        self.wrong: list[str] = []

    def say(self, name: str, value: Any, fine: bool = True) -> None:
        self.figures[name] = value
        self.wrong += [] if fine else [name]
        print(f"{name}: {value}{'' if fine else '   WRONG'}", flush=True)


class Job:
    process: subprocess.Popen[bytes]

    def __init__(self, gib: float, kind: str, *more: str) -> None:
        self.folder, self.numbers = Path(tempfile.mkdtemp()), itertools.count(1)
        self.words = [sys.executable, str(JOB), str(self.folder), str(gib), kind, *more]

    def said(self, number: int) -> str:
        said = self.folder / "said"
        lines = [line.split() for line in said.read_text().split("\n")[:-1]] if said.exists() else []
        return next((word for at, word in lines if at == str(number)), "")

    def ended(self) -> str:
        """Why, and what it printed last; "" while it runs."""
        return f"exit code {self.process.returncode}" if self.process.poll() is not None else ""

    def begins(self) -> None:
        self.answers(0)

    def answers(self, number: int) -> str:
        until(lambda: self.said(number) or self.ended(), LONG)
        if not self.said(number) and (why := self.ended()):
            raise RuntimeError(f"{' '.join(self.words)} ended: {why}")
        return self.said(number)

    def is_right(self) -> bool:
        number = next(self.numbers)
        (self.folder / "asking").write_text(str(number))
        (self.folder / "asking").rename(self.folder / "ask")
        return self.answers(number) == "right"


class Calls:
    """The driver's own, by the scheduler's worker."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WORKER)], stdin=-1, stdout=-1, text=True, env=environment
        )
        assert self.process.stdout
        assert self.process.stdout.readline().startswith("ready")

    def do(self, order: str, pid: int, *more: object) -> tuple[int, float]:
        """CUresult, seconds."""
        assert self.process.stdin
        assert self.process.stdout
        print(order, pid, *more, file=self.process.stdin, flush=True)
        code, _, seconds = self.process.stdout.readline().split()
        return int(code), float(seconds)

    def out(self, pid: int) -> tuple[int, float]:
        code, locked = self.do("lock", pid, 30_000)
        gone, took = self.do("checkpoint", pid)
        return code or gone, locked + took

    def back(self, pid: int, pairs: Sequence[tuple[str, str]] = ()) -> tuple[int, float]:
        words = [f"{uuid_bytes(old).hex()}:{uuid_bytes(new).hex()}" for old, new in pairs]
        code, took = self.do("restore", pid, *words)
        return (code, took) if code else (self.do("unlock", pid)[0], took)


@contextmanager
def running(job: Job, environment: dict[str, str]) -> Iterator[int]:
    with subprocess.Popen(job.words, env=environment, start_new_session=True) as process:
        job.process = process
        try:
            job.begins()
            yield process.pid
        finally:
            process.kill()


def swap(cards: Sequence[str], old: str, new: str) -> list[tuple[str, str]]:
    return [(card, {old: new, new: old}.get(card, card)) for card in cards]


def bare(found: Found, cards: list[str], kind: str, sizes: Sequence[float], times: int, given: dict[str, str]) -> None:
    one, two = cards[:2]
    environment = {**os.environ, **ENVIRONMENT, **given, "NVIDIA_VISIBLE_DEVICES": one}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    calls = Calls(environment)
    ways = {"all cards named": swap(cards, one, two), "its own named": [(one, two)]}
    seen = {"sees all": {}, "sees its own by number": {"CUDA_VISIBLE_DEVICES": "0"},
            "sees its own by UUID": {"CUDA_VISIBLE_DEVICES": one}}  # fmt: skip
    for (who, more), (way, pairs) in itertools.product(seen.items(), ways.items()):
        job = Job(min(sizes), kind)
        with running(job, environment | more) as pid:
            went, _ = calls.out(pid)
            code, took = calls.back(pid, pairs)
            if code:
                calls.back(pid)
            found.say(f"bare, {who}, {way}", {"out": went, "in": code, "seconds": took, "right": job.is_right()})
    if kind == "torch":
        job = Job(0.5, "init")
        with running(job, environment) as pid:
            went, _ = calls.out(pid)
            code, _ = calls.back(pid, ways["all cards named"]) if not went else (went, 0.0)
            found.say("bare, initialised only", {"out": went, "in": code, "right": job.is_right()})
    for gib in sizes:
        job, here, there = Job(gib, kind), one, two
        with running(job, environment) as pid:
            outs, backs, codes, right = [], [], set(), True
            for _ in range(times):
                for result, seconds in ((calls.out(pid), outs), (calls.back(pid, swap(cards, here, there)), backs)):
                    codes.add(result[0])
                    seconds.append(result[1])
                here, there = there, here
                right &= job.is_right()
            told = {"out": median(outs), "in": median(backs), "codes": sorted(codes), "right": right}
            found.say(f"bare, {gib:g} GiB, {times} times", told, codes == {0} and right)


def median(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds), 2)


class Contained(Job):
    def __init__(self, appliance: Appliance, name: str, gib: float, kind: str, card: str, *more: str) -> None:
        super().__init__(gib, kind, *more)
        self.appliance = appliance
        made = appliance.launch(
            *self.words, name=name, gpu_memory=int((gib + 3) * GIB), gpus=[card], env=ENVIRONMENT
        )  # fmt: skip
        self.id = made["id"]
        self.begins()

    def ended(self) -> str:
        told = self.appliance.api("GET", f"containers/{self.id}/")
        if not told["finished_at"]:
            return ""
        token = {"Authorization": f"Token {self.appliance.token}"}
        output = httpx.get(f"{self.appliance.url}/api/v1/containers/{self.id}/logs/", headers=token, timeout=30).text
        return f"{told['state']}, exit code {told['exit_code']}, {told['reason']!r}. It printed:\n{output[-4000:]}"

    def move(self, card: str) -> tuple[int, str]:
        try:  # a busy machine answers with the container, once it is done
            told = self.appliance.api("POST", f"containers/{self.id}/move/", {"gpu": card})
            return 200, told.get("message", "")
        except httpx.HTTPStatusError as error:
            return error.response.status_code, error.response.json()["error"]["message"]

    def card(self) -> str:
        return str(self.appliance.api("GET", f"containers/{self.id}/")["gpus"][0]["uuid"])

    def took(self, kind: str) -> list[float]:
        events = self.appliance.api("GET", f"allocations/?container={self.id}&kind={kind}&page_size=100")["results"]
        return [float(took[1]) for each in events if (took := re.search(r"It took ([\d.]+) s", each["detail"]))]

    def end(self) -> None:
        self.appliance.api("POST", f"containers/{self.id}/kill/", {})


def contained(found: Found, appliance: Appliance, kind: str, sizes: Sequence[float], times: int) -> None:
    one, two = [card["uuid"] for card in appliance.api("GET", "gpus/")["results"]][:2]
    for gib in sizes:
        job, right, said = Contained(appliance, f"c{gib:g}", gib, kind, one, "all"), True, set()
        for number in range(times):
            there = (two, one)[number % 2]
            status, message = job.move(there)
            said.add(re.sub(r"\d+", "N", message))
            right &= status == 200 and job.card() == there and job.is_right()
        outs, backs = job.took("swapped_out"), job.took("swapped_in")
        told = {"out": median(outs), "in": median(backs), "said": sorted(said), "right": right}
        found.say(f"appliance, {gib:g} GiB, {times} times", told, right)
        before = found.figures.get(f"bare, {gib:g} GiB, {times} times")
        if before:
            beside = (told["out"] + told["in"]) / (before["out"] + before["in"])
            found.say(f"appliance, {gib:g} GiB, times the bare calls", round(beside, 3), beside <= SLOWER)
        job.end()
    job = Contained(appliance, "fixed", min(sizes), kind, one)
    told = [*job.move(two), job.card() == two, job.is_right()]
    found.say("appliance, sees its own by CUDA_VISIBLE_DEVICES", told, told[3])
    job.end()
    jobs = [Contained(appliance, f"d{number}", min(sizes), kind, one, "all") for number in range(3)]
    appliance.api("POST", f"gpus/{one}/drain/", {"note": "a trial"})
    begun = time.monotonic()
    until(lambda: all(job.card() == two for job in jobs), LONG)
    emptied = round(time.monotonic() - begun, 1)
    found.say("appliance, a drained card is empty after", f"{emptied} s", all(job.is_right() for job in jobs))
    states = {appliance.api("GET", f"containers/{job.id}/")["state"] for job in jobs}
    found.say("appliance, who was on it is", sorted(states), states == {"running"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--gpus", default="nvidia")
    parser.add_argument("--sizes", type=float, nargs="+", default=[1.0, 8.0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    options = parser.parse_args()
    found, folder, kind = Found(), Path(tempfile.mkdtemp()), "sim" if options.gpus.startswith("sim") else "torch"
    parts = options.parts or ["bare", "appliance"]
    appliance = Appliance(folder / "home", options.gpus, GPUSHARE_GIVE_WAY="off", GPUSHARE_MOVE_SHARE="0")
    try:
        cards = [card["uuid"] for card in appliance.api("GET", "gpus/")["results"]]
        if "bare" in parts and kind == "torch":
            bare(found, cards, kind, options.sizes, options.times, {})
        if "appliance" in parts:
            contained(found, appliance, kind, options.sizes, options.times)
    except Exception as error:
        found.say("it ended with", repr(error), fine=False)
        found.figures["traceback"] = traceback.format_exc()[-4000:]
        traceback.print_exc()
    finally:
        (options.out / "moved.json").write_text(json.dumps({**found.figures, "wrong": found.wrong}, indent=1))
        log = folder / "home.log"
        (options.out / "moved-appliance.log").write_bytes(log.read_bytes()[-200_000:] if log.exists() else b"")
        appliance.close()
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
