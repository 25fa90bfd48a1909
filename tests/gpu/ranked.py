"""Trainings of two ranks on two GPUs: turns by weight, limits, moves, and losses equal to those of others.

    python -m tests.gpu.ranked [--gpus SPEC] [--within S] [--out FOLDER] [--parts PART …]

In an appliance with the process engine; needs no Docker. One alone beside the same without the appliance, in turn; a
limit; of each kind (shim/gate_programs.py) two at 300/100; three, of which one is on one GPU; a hundred random changes,
pauses and kills of the scheduler while a third is moved ten times. Programs wait at a number of steps until it is their
part (job_ranks.py). A part for which too little is left of `--within` is left out. Writes FOLDER/ranked.json (FOLDER:
$OUT) and prints each figure as it comes; exits 1 if anything is wrong. `--gpus sim:2x40GiB` tries the script itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.gpu.job_ranks import EVERY
from tests.gpu.shim import NO_MULTICAST
from tests.support.appliance import ROOT, Appliance, until

GIB = 1 << 30
BEGINS = 90.0  # seconds in which all have imported what they need and begun
LONG, RESTED = 40.0, 6.0  # who has just computed seems to go on, and has turns
PAIRS = ["fsdp", "two", "compiled", "pipeline", "jax", "graphs"]
PARTS = ["native", "limit", "ddp", "three", *PAIRS[:5], "random", "graphs"]
TAKES = {"native": 60, "limit": 30, "ddp": 40, "three": 35, "random": 60} | dict.fromkeys(PAIRS, 40)  # seconds
BATCH = {"fsdp": 16384}
ENVIRONMENT = NO_MULTICAST | {
    "PYTHONPATH": str(ROOT), "USER": "root", "HOME": "/tmp", "OMP_NUM_THREADS": "2",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
}  # fmt: skip
ALIKE, PINNED = ("one", "small", "native-ddp", "native-small"), {"CORES": "4"}  # compared in time
STEPS, KILLS, MOVES = 100, 4, 10


class Job:
    """A program; `sim`: stands for it on the simulated card."""

    def __init__(self, folder: Path, kind: str, name: str, sim: bool) -> None:
        self.folder, self.kind, self.name = folder, kind, name
        kind = kind if not sim else "sim-alone" if kind == "gemm" else "sim"
        self.words = [sys.executable, str(ROOT / "tests/gpu/job_ranks.py"), kind, str(folder), name]
        self.environment = ENVIRONMENT | {"BATCH": str(BATCH.get(self.kind, 8192))} | (PINNED if name in ALIKE else {})
        self.go(9)

    def go(self, count: int = 10**9) -> None:
        """On, to this number of steps."""
        new = self.folder / f"{self.name}.new"
        new.write_text(str(count))
        new.rename(self.folder / f"{self.name}.until")

    def lines(self) -> list[tuple[float, int, str]]:
        """Time, steps, loss."""
        path = self.folder / f"{self.name}.done"
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(float(at), int(count), loss) for at, count, loss in map(str.split, whole)]

    def rate(self, begin: float, end: float) -> float:
        """Steps a second, in proportion between two lines."""
        lines = self.lines()

        def done(at: float) -> float:
            for (before, steps, _), (after, more, _) in pairwise(lines):
                if before <= at < after:
                    return steps + (more - steps) * (at - before) / (after - before)
            return lines[-1][1]

        return (done(end) - done(begin)) / (end - begin)

    def gap(self, begin: float, end: float) -> float:
        """The longest time between two lines."""
        times = [begin, *(at for at, _, _ in self.lines() if begin <= at <= end), end]
        return max(later - at for at, later in pairwise(times))

    def goes_on(self) -> None:
        before = len(self.lines())
        until(lambda: len(self.lines()) > before + 1, LONG)

    def block(self, count: int) -> float:
        """Seconds that so many more steps take: from the first line to the last."""
        before, wanted = len(self.lines()), self.lines()[-1][1] + count
        self.go(wanted)
        until(lambda: self.lines()[-1][1] >= wanted, LONG)
        its = self.lines()[before:]
        return its[-1][0] - its[0][0]


class Contained(Job):
    def __init__(self, appliance: Appliance, folder: Path, kind: str, name: str, sim: bool, **fields: Any) -> None:
        super().__init__(folder, kind, name, sim)
        self.appliance = appliance
        fields = {"gpu_memory": (4 if kind == "fsdp" else 3) * GIB, "gpus": 2} | fields
        self.id = appliance.launch(*self.words, name=name, env=self.environment, **fields)["id"]

    def ask(self, method: str, path: str = "", body: Any = None) -> Any:
        """Patiently: the scheduler may have been killed."""
        for _ in range(60):
            try:
                return self.appliance.api(method, f"containers/{self.id}/{path}", body)
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500:
                    raise
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise TimeoutError(f"{method} {path} had no answer")

    def begun(self, within: float) -> str:
        """Why not, if it has ended."""
        until(lambda: len(self.lines()) > 2 or self.ask("GET")["finished_at"], within)
        return "" if len(self.lines()) > 2 else f"{self.ask('GET')['reason']}"

    def do(self, what: str, **body: Any) -> str:
        """ "" if it was done, else why not."""
        try:
            self.ask("POST", f"{what}/", body)
        except httpx.HTTPStatusError as error:
            return f"{error.response.status_code} {error}"
        return ""

    def had(self) -> float:
        """Seconds of a GPU's time, as the scheduler counts."""
        return max(float(gpu["had"] or 0.0) for gpu in self.ask("GET")["gpus"])

    def change(self, **fields: Any) -> None:
        self.ask("PATCH", body=fields)


class Scene:
    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.out, self.seconds = folder, options.out, options.seconds
        self.sim: bool = options.gpus.startswith("sim")
        self.ends = time.monotonic() + options.within
        self.found: dict[str, Any] = {"wrong": []}
        self.jobs: dict[str, Contained] = {}
        self.alone: dict[str, float] = {}
        self.appliance = Appliance(folder / "home", options.gpus, GPUSHARE_COMPUTE="turns")

    def check(self, name: str, value: Any, fine: bool = True) -> None:
        self.found[name] = value
        self.found["wrong"] += [] if fine else [name]
        print(f"[{round(self.ends - time.monotonic())}] {name}: {value}{'' if fine else '   WRONG'}", flush=True)
        (self.out / "ranked.json").write_text(json.dumps(self.found, indent=1))

    @contextlib.contextmanager
    def guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.check(f"{name} ended with", traceback.format_exc()[-1500:], fine=False)

    def launch(self, kind: str, name: str, **fields: Any) -> None:
        self.jobs[name] = Contained(self.appliance, self.folder, kind, name, self.sim, **fields)

    def begin(self, *names: str) -> None:
        """Waits until they have; those that could not are left out of what follows."""
        ends = time.monotonic() + BEGINS
        for name in names:
            with self.guarded(f"begin {name}"):
                if why := self.jobs[name].begun(max(1.0, ends - time.monotonic())):
                    token = {"Authorization": f"Token {self.appliance.token}"}
                    url = f"{self.appliance.url}/api/v1/containers/{self.jobs[name].id}/logs/"
                    self.check(f"begin {name}", why + httpx.get(url, headers=token).text[-800:], fine=False)

    def watch(self, *jobs: Contained, settle: float, seconds: float = 0.0) -> tuple[float, float]:
        time.sleep(settle)
        begin = time.time()
        end = begin + (seconds or self.seconds)
        told: list[list[tuple[float, float]]] = [[] for _ in jobs]  # each time that something new is told
        while time.time() < end:
            time.sleep(0.25)
            for job, its in zip(jobs, told, strict=True):
                if not its or job.had() != its[-1][1]:
                    its.append((time.time(), job.had()))
        spans = [(its[1], its[-1]) for its in told if len(its) > 2]  # when the first was told is not known
        self.counted = [round((last - had) / (at - since), 3) for (since, had), (at, last) in spans]
        for job in jobs:
            until(lambda: job.lines()[-1][0] > end, LONG)  # noqa: B023
        return begin, end

    def run(self, parts: list[str]) -> None:
        with self.guarded("launch"):
            self.launch("ddp", "one", compute_weight=300)
            self.launch("ddp", "two", compute_weight=100)
            self.launch("gemm", "third", gpus=1, compute_weight=100)
            if "native" in parts and not self.sim:
                self.launch("small", "small")
                with self.guarded("native"):
                    self.native()
                self.jobs["small"].do("kill")
            for kind in [part for part in parts if part in PAIRS]:
                self.launch(kind, f"{kind}-300", compute_weight=300)
                self.launch(kind, f"{kind}-100", compute_weight=100)
            if "random" in parts:
                self.launch("ddp", "a")
                self.launch("ddp", "b")
                self.launch("ddp", "moved", movable=True)
            self.begin(*(name for name in self.jobs if name != "small"))
        for part in [part for part in parts if part != "native"]:
            if self.ends - time.monotonic() < TAKES[part]:
                self.check(f"{part} left out", "no time", fine=False)
                continue
            with self.guarded(part):
                if part in PAIRS:
                    self.pair(part, self.jobs[f"{part}-300"], self.jobs[f"{part}-100"])
                    self.end(f"{part}-300", f"{part}-100")
                elif part == "ddp":
                    self.pair(part, self.jobs["one"], self.jobs["two"])
                else:
                    {"limit": self.limit, "three": self.three, "random": self.random}[part]()
            if part == "three":
                self.end("one", "two", "third")

    def native(self) -> None:
        """Steps of one in the appliance and of the same without, in turn; not on the simulated card."""
        outside = {kind: Job(self.folder, kind, f"native-{kind}", self.sim) for kind in ("ddp", "small")}
        begin = partial(subprocess.Popen, start_new_session=True)
        processes = [begin(job.words, env=os.environ | job.environment) for job in outside.values()]
        try:
            self.begin("one", "two", "third", "small")
            for kind, inside, count, rounds in (("small", "small", 45, 16), ("ddp", "one", 45, 7)):
                until(lambda: len(outside[kind].lines()) > 2, LONG)  # noqa: B023
                time.sleep(RESTED)
                for job in (self.jobs[inside], outside[kind]):
                    job.block(count)
                both = [(self.jobs[inside].block(count), outside[kind].block(count)) for _ in range(rounds)]
                ours, native = (statistics.median(its) for its in zip(*both, strict=True))
                self.check(f"{kind} alone, of native: median", round(native / ours, 4), native / ours >= 0.998)
                self.check(f"{kind} alone, of native: all", sorted(round(its / own, 3) for own, its in both))
                self.alone[inside] = (count - EVERY) / ours
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def limit(self) -> None:
        one = self.jobs["one"]
        one.go()
        alone = self.rate_alone(one)
        one.change(compute_limit=30)
        limited = one.rate(*self.watch(one, settle=7)) / alone
        self.check("limit 30: work", round(limited, 3), abs(limited - 0.3) <= 0.03)
        self.check("limit 30: time that was counted", self.counted)
        one.change(compute_limit=None)

    def rate_alone(self, job: Contained) -> float:
        return self.alone.get(job.name) or job.rate(*self.watch(job, settle=RESTED, seconds=5))

    def pair(self, kind: str, one: Contained, two: Contained) -> None:
        one.go()
        alone = self.rate_alone(one)
        ranks = [(each["rank"], each["of"]) for each in one.ask("GET")["ranks"]]
        self.check(f"{kind}: ranks", ranks, ranks == [(0, 2), (1, 2)])
        two.go()
        span = self.watch(one, two, settle=6)
        rates = [job.rate(*span) / alone for job in (one, two)]
        its = [round(rate / sum(rates), 3) for rate in rates]
        self.check(f"{kind} 300/100: parts", its, abs(its[0] - 0.75) <= 0.05)
        self.check(f"{kind} 300/100: work in sum", round(sum(rates), 3), sum(rates) >= 0.95)
        self.check(f"{kind} 300/100: time that was counted", self.counted)
        gaps = [round(job.gap(*span), 2) for job in (one, two)]
        self.check(f"{kind} 300/100: longest gap", gaps, max(gaps) < 2.0)
        self.told(one, two)
        self.equal(kind, one, two)
        self.check(f"{kind}: steps/s alone", round(alone, 1))

    def told(self, *jobs: Contained) -> None:
        why = [job.ask("GET")["no_turns"] for job in jobs]
        self.check(f"no_turns of {jobs[0].name}", why, not any(why))

    def three(self) -> None:
        """Weights of 300, 100 and 100, of which the last is on one card."""
        jobs = [self.jobs[name] for name in ("one", "two", "third")]
        for job in jobs[:2]:
            job.do("pause")
        jobs[2].go()
        alone = jobs[2].rate(*self.watch(jobs[2], settle=2, seconds=5))
        for job in jobs[:2]:
            job.do("resume")
        span = self.watch(*jobs, settle=6)
        whole = [self.alone["one"], self.alone["one"], alone]
        its = [round(job.rate(*span) / each, 3) for job, each in zip(jobs, whole, strict=True)]
        due = (0.6, 0.2, 0.2)
        self.check("three: work", its, all(abs(part - wanted) <= 0.05 for part, wanted in zip(its, due, strict=True)))
        self.check("three: time that was counted", self.counted)
        self.told(*jobs)

    def random(self) -> None:
        """A third is moved meanwhile, again and again."""
        a, b, moved = (self.jobs[name] for name in ("a", "b", "moved"))
        draws, done, kills = random.Random(7), 0, 0
        self.check("without movable", why := a.do("pause", free_memory=True)[:40], why.startswith("409"))
        for job in (a, b, moved):
            job.go()
        over = threading.Event()
        moves: list[Any] = []
        mover = threading.Thread(target=self.moves, args=(moved, moves, over), daemon=True)
        mover.start()
        while (done < STEPS or len(moves) < MOVES) and self.ends - time.monotonic() > 25:
            job, deed = draws.choice([a, b]), draws.choice(("weight", "limit", "pause"))
            if done % (STEPS // KILLS) == STEPS // KILLS - 1 and kills < KILLS:
                with contextlib.suppress(KeyError, ProcessLookupError):  # it is just being started
                    os.kill(self.appliance.parts()["scheduler"], signal.SIGKILL)
                    kills += 1
            elif deed == "pause":
                job.do("pause")
                time.sleep(draws.random() / 3)
                job.do("resume")
            elif deed == "weight":
                job.change(compute_weight=draws.choice([50, 100, 300]))
            elif deed == "limit":
                job.change(compute_limit=draws.choice([None, 30, 60]))
            done += 1
            time.sleep(draws.random() / 3)
        over.set()
        mover.join(60)
        for job in (a, b):
            job.do("resume")
            job.change(compute_limit=None)
            job.goes_on()
        self.check("random: steps, kills", [done, kills], done >= STEPS)
        self.check("moves, seconds", moves, len(moves) >= MOVES and not any(isinstance(each, str) for each in moves))
        self.equal("random", a, b, moved)
        self.told(a, b, moved)
        self.end("a", "b", "moved")

    @staticmethod
    def moves(job: Contained, moves: list[Any], over: threading.Event) -> None:
        while not over.is_set() and len(moves) < MOVES:
            begun = time.monotonic()
            why = job.do("pause", free_memory=True) or job.do("resume")
            try:
                job.goes_on()
            except AssertionError:
                why += " It did not go on."
            moves.append(why[:300] or round(time.monotonic() - begun, 1))
            if why:
                job.do("resume")

    def equal(self, what: str, *jobs: Contained) -> None:
        """Step by step, their losses; and those of one that ran without the appliance, as far as that went."""
        outside = self.folder / f"native-{jobs[0].kind}.done"
        lines = outside.read_text().split("\n")[:-1] if outside.exists() else []
        known = {int(count): loss for _, count, loss in map(str.split, lines)}
        others, compared = [], 0
        for job in jobs:
            for _, count, loss in job.lines():
                compared += count in known
                if known.setdefault(count, loss) != loss:
                    others.append(f"{job.name}, step {count}: {loss}, not {known[count]}")
        self.check(f"{what}: losses", others[:2] or f"{compared} equal", not others and compared > 0)

    def end(self, *names: str) -> None:
        for name in names:
            self.jobs[name].do("kill")
        until(lambda: all(self.jobs[name].ask("GET")["finished_at"] for name in names))

    def close(self) -> None:
        log = self.folder / "home.log"
        (self.out / "appliance.log").write_bytes(log.read_bytes()[-400_000:] if log.exists() else b"")
        self.check("wrong at all", list(self.found["wrong"]))
        self.appliance.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--gpus", default="nvidia")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--within", type=float, default=520.0, help="seconds")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    options = parser.parse_args()
    scene = Scene(Path(tempfile.mkdtemp()), options)
    try:
        scene.run(options.parts)
    finally:
        scene.close()
    return 1 if scene.found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
