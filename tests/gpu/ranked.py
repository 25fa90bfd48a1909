"""Trainings of two ranks on two GPUs: turns by weight, limits, moves, and losses equal to those of others.

    python -m tests.gpu.ranked [--gpus SPEC] [--docker] [--cards INDEX …] [--within S] [--out FOLDER] [--parts PART …]

In an appliance with the process engine, or with Docker (that of DOCKER_HOST, or else a dockerd that it starts). One
alone beside the same without the appliance, in turn; a limit; of each kind (shim/gate_programs.py) two at 300/100;
three, of which one is on one GPU; a hundred random changes, pauses and kills of the scheduler while a third is moved
ten times. Besides, if they are named: `small`: all-reduces of 4 KiB beside native ones, before anything else is there;
`hang`: a rank stands still for a while; `dies`: a rank is killed; `abort`: one breaks its communicator off in the
middle, again and again; `moved-KIND`, after KIND: one that is `movable` is moved ten times, and has the losses of the
one that is not. Programs wait at a number of steps until it is their part (job_ranks.py). A part for which too little
is left of `--within` is left out. Writes FOLDER/ranked.json (FOLDER: $OUT) and prints each figure as it comes; exits 1
if anything is wrong. `--gpus sim:2x40GiB` tries the script itself.
"""

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from scheduler.card.gates import BETWEEN, HOLD, TRIES
from scheduler.card.processes import LOCK_WITHIN
from tests.gpu import host_image
from tests.gpu.job_ranks import EVERY
from tests.gpu.ranked_jobs import ALSO, LONG, MADE, NEEDS, PAIRS, PARTS, TAKES, Contained, Job
from tests.support.appliance import Appliance, until

BEGINS = 90.0  # seconds in which all have imported what they need and begun
RESTED = 6.0  # who has just computed seems to go on, and has turns
LATE = TRIES * HOLD + (TRIES - 1) * BETWEEN  # seconds until a turn goes to others all the same
HANGS = 10.0  # seconds
STEPS, KILLS, MOVES = 100, 4, 10
NOT_FREED = "back from host memory"  # how the refusal ends


class Scene:
    def __init__(self, folder: Path, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.folder, self.out, self.seconds = folder, options.out, options.seconds
        self.sim: bool = options.gpus.startswith("sim")
        self.ends = time.monotonic() + options.within
        self.found: dict[str, Any] = {"wrong": []}
        self.jobs: dict[str, Contained] = {}
        self.alone: dict[str, float] = {}
        self.within = host_image.engine(stack) if options.docker else None
        more = self.within.settings if self.within else {}
        self.appliance = Appliance(folder / "home", options.gpus, GPUSHARE_COMPUTE="turns", **more)
        known = [card["uuid"] for card in self.appliance.api("GET", "gpus/")["results"]]
        self.cards = [known[index] for index in options.cards]

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

    def launch(self, name: str) -> None:
        if name not in self.jobs:
            kind, fields = MADE[name]
            its = (self.appliance, self.within, self.folder, kind, name, self.sim)
            if self.cards:
                fields = fields | {"gpus": self.cards[: fields.get("gpus", 2)]}
            self.jobs[name] = Contained(*its, **fields)

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
        reports: list[list[tuple[float, float]]] = [[] for _ in jobs]  # each time that something new is reported
        while time.time() < end:
            time.sleep(0.25)
            for job, its in zip(jobs, reports, strict=True):
                if not its or job.had() != its[-1][1]:
                    its.append((time.time(), job.had()))
        spans = [(its[1], its[-1]) for its in reports if len(its) > 2]  # when the first was reported is not known
        self.counted = [round((last - had) / (at - since), 3) for (since, had), (at, last) in spans]
        for job in jobs:
            until(lambda: job.lines()[-1][0] > end, LONG)  # noqa: B023
        return begin, end

    def run(self, parts: list[str]) -> None:
        if "small" in parts and not self.sim:
            with self.guarded("small"):
                self.small()
        parts = [part for part in parts if part != "small" and not (part == "native" and self.sim)]
        names = list(dict.fromkeys(name for part in parts for name in NEEDS[part]))
        with self.guarded("launch"):
            for name in names:
                self.launch(name)
            self.begin(*names)
        for number, part in enumerate(parts):
            if self.ends - time.monotonic() < TAKES[part]:
                self.check(f"{part} left out", "no time", fine=False)
                continue
            with self.guarded(part):
                if part in ("ddp", *PAIRS):
                    self.pair(part, *(self.jobs[name] for name in NEEDS[part]))
                elif part.startswith("moved-"):
                    self.moved(part, *(self.jobs[name] for name in NEEDS[part]))
                else:
                    {
                        "native": self.native, "limit": self.limit, "three": self.three, "random": self.random,
                        "hang": self.hang, "dies": self.dies, "abort": self.abort,
                    }[part]()  # fmt: skip
            later = {name for each in parts[number + 1 :] for name in NEEDS[each]}
            with self.guarded(f"the end of {part}"):
                self.end(*(name for name in NEEDS[part] if name not in later))

    def native(self) -> None:
        """Steps of one in the appliance and of the same without, in turn; not on the simulated card."""
        with self.outside("ddp"):
            self.beside("ddp", self.jobs["one"], 45, 7)

    def small(self) -> None:
        """The same of all-reduces, while nothing else is there."""
        self.launch("small")
        with self.outside("small"):
            self.begin("small")
            self.beside("small", self.jobs["small"], 150, 100)
        self.end("small")

    @contextlib.contextmanager
    def outside(self, kind: str) -> Iterator[None]:
        job = self.native_job = Job(self.folder, kind, f"native-{kind}", self.sim)
        its = {"CUDA_VISIBLE_DEVICES": ",".join(self.cards)} if self.cards else {}
        process = subprocess.Popen(job.words, env=os.environ | job.environment | its, start_new_session=True)
        try:
            until(lambda: len(job.lines()) > 2, BEGINS)
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def beside(self, kind: str, job: Contained, count: int, rounds: int) -> None:
        """In turn, each as often the first as the second: what the card does meanwhile meets both."""
        native, ratios, took = self.native_job, [], []
        time.sleep(RESTED)
        for each in (job, native):
            each.block(count)
        for number in range(rounds):
            order = (job, native) if number % 2 else (native, job)
            seconds = {each.name: each.block(count) for each in order}
            took.append((seconds[job.name], seconds[native.name]))
            ratios.append(round(took[-1][1] / took[-1][0], 4))
        ours, its = (statistics.median(each) for each in zip(*took, strict=True))
        between = quotients(took)
        self.check(
            f"{kind} alone, of native: median of pairs", statistics.median(ratios), statistics.median(ratios) >= 0.998
        )
        self.check(
            f"{kind} alone, of native: medians, and 95 % of what they could be", [round(its / ours, 4), *between]
        )
        self.check(f"{kind} alone, of native: all", sorted(ratios))
        self.alone[job.name] = (count - EVERY) / ours

    def limit(self) -> None:
        one = self.jobs["one"]
        one.go()
        alone = self.rate_alone(one)
        self.check("limit 30: steps/s alone", round(alone, 1))
        one.change(compute_limit=30)
        limited = one.rate(*self.watch(one, settle=7)) / alone
        self.check("limit 30: work", round(limited, 3), abs(limited - 0.3) <= 0.03)
        self.check("limit 30: time that was counted", self.counted)
        one.change(compute_limit=None)

    def rate_alone(self, job: Contained) -> float:
        if job.name not in self.alone:
            self.alone[job.name] = job.rate(*self.watch(job, settle=RESTED, seconds=5))
        return self.alone[job.name]

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
        self.check_no_turns(one, two)
        self.equal(kind, one, two)
        self.check(f"{kind}: steps/s alone", round(alone, 1))

    def check_no_turns(self, *jobs: Contained) -> None:
        why = [job.ask("GET")["no_turns"] for job in jobs]
        self.check(f"no_turns of {jobs[0].name}", why, not any(why))

    def three(self) -> None:
        """Weights of 300, 100 and 100, of which the last is on one card."""
        jobs = [self.jobs[name] for name in NEEDS["three"]]
        for job in (jobs[0], jobs[2]):
            others = [other for other in jobs if other is not job]
            for other in others:
                other.do("pause")
            job.go()
            self.rate_alone(job)
            for other in others:
                other.do("resume")
        jobs[1].go()
        span = self.watch(*jobs, settle=6)
        whole = [self.alone["one"], self.alone["one"], self.alone["third"]]
        self.check("three: steps/s alone", [round(each, 1) for each in whole])
        its = [round(job.rate(*span) / each, 3) for job, each in zip(jobs, whole, strict=True)]
        due = (0.6, 0.2, 0.2)
        self.check("three: work", its, all(abs(part - wanted) <= 0.05 for part, wanted in zip(its, due, strict=True)))
        self.check("three: time that was counted", self.counted)
        self.check_no_turns(*jobs)

    def random(self) -> None:
        """A third is moved meanwhile, again and again."""
        a, b, moved = (self.jobs[name] for name in ("a", "b", "moved"))
        draws, done, kills = random.Random(7), 0, 0
        self.check("without movable", why := a.do("pause", free_memory=True)[-200:], NOT_FREED in why)
        for job in (a, b, moved):
            job.go()
        over = threading.Event()
        moves: list[Any] = []
        mover = threading.Thread(target=self.moves, args=(moved, moves, over, self.ends), daemon=True)
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
        self.check_no_turns(a, b, moved)

    def moved(self, part: str, still: Contained, moved: Contained) -> None:
        still.do("pause")
        self.check(f"{part}: without movable", why := still.do("pause", free_memory=True)[-200:], NOT_FREED in why)
        moved.go()
        moved.goes_on()
        moves: list[Any] = []
        self.moves(moved, moves, threading.Event(), self.ends - 20)
        self.check(f"{part}, seconds", moves, len(moves) == MOVES and not any(isinstance(each, str) for each in moves))
        self.equal(part, still, moved)

    def hang(self) -> None:
        """Rank 1 of the one with more weight stands still: the other's turns come, late by the time-out at most."""
        one, two = (self.jobs[name] for name in NEEDS["hang"])
        one.go()
        alone = self.rate_alone(one)
        two.go()
        before = two.gap(*self.watch(one, two, settle=6, seconds=10))
        pid = next(each["pid"] for each in one.ask("GET")["ranks"] if each["rank"] == 1)
        os.kill(pid, signal.SIGSTOP)
        try:
            span = self.watch(two, settle=0.5, seconds=HANGS)
        finally:
            os.kill(pid, signal.SIGCONT)
        gap = two.gap(*span)
        self.check(
            "hang: longest gap of the other before, meanwhile", [round(before, 2), round(gap, 2)], gap <= before + LATE
        )
        self.check("hang: the other's work of one alone", round(two.rate(*span) / alone, 3))
        why = one.ask("GET")["no_turns"]  # and takes none for a minute (HUNG_FOR)
        self.check("hang: why it takes no turns", why, bool(why))
        for job in (one, two):
            job.goes_on()
        self.equal("hang", one, two)

    def dies(self) -> None:
        """Rank 1 of the one with less weight is killed: the other goes on, and has its cards alone in the end."""
        one, two = (self.jobs[name] for name in NEEDS["dies"])
        one.go()
        alone = self.rate_alone(one)
        two.go()
        before = one.gap(*self.watch(one, two, settle=6, seconds=10))
        os.kill(next(each["pid"] for each in two.ask("GET")["ranks"] if each["rank"] == 1), signal.SIGKILL)
        span = self.watch(one, settle=0.5, seconds=HANGS)
        gap = one.gap(*span)
        self.check(
            "dies: longest gap of the other before, meanwhile",
            [round(before, 2), round(gap, 2)],
            gap <= before + LOCK_WITHIN + LATE,
        )
        self.check("dies: the other's work of one alone", round(one.rate(*span) / alone, 3))
        self.check("dies: why it takes no turns", two.ask("GET")["no_turns"])
        two.do("kill")
        after = one.rate(*self.watch(one, settle=3, seconds=5)) / alone
        self.check("dies: the other's work once it is killed", round(after, 3), after >= 0.95)
        self.equal("dies", one, two)

    def abort(self) -> None:
        """Of one of them, each communicator is broken off with a collective that only one rank has begun."""
        two, broken = (self.jobs[name] for name in NEEDS["abort"])
        two.go()
        alone = self.rate_alone(two)
        broken.go()
        span = self.watch(two, broken, settle=3)
        gap = two.gap(*span)
        self.check("abort: longest gap of the other", round(gap, 2), gap <= 1.0 + LATE)
        self.check("abort: the other's work of one alone", round(two.rate(*span) / alone, 3))
        self.check("abort: its steps/s", round(broken.rate(*span), 1), broken.rate(*span) > 0)
        came = {loss for _, _, loss in broken.lines()}
        self.check("abort: what came of its steps", sorted(came), len(came) == 1)

    @staticmethod
    def moves(job: Contained, moves: list[Any], over: threading.Event, ends: float) -> None:
        while not over.is_set() and len(moves) < MOVES and time.monotonic() < ends:
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


def quotients(took: Sequence[tuple[float, float]], draws: int = 2000) -> list[float]:
    """Between which 95 % of the quotients of the medians lie, if pairs are drawn from these again and again."""
    draw = random.Random(7)
    each = []
    for _ in range(draws):
        ours, its = zip(*draw.choices(took, k=len(took)), strict=True)
        each.append(statistics.median(its) / statistics.median(ours))
    return [round(sorted(each)[int(part * draws)], 4) for part in (0.025, 0.975)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=[*PARTS, *ALSO])
    parser.add_argument("--docker", action="store_true")
    parser.add_argument("--gpus", default="nvidia")
    parser.add_argument("--cards", type=int, nargs=2, default=[], help="which of the host's; else any two")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--within", type=float, default=520.0, help="seconds")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        scene = Scene(Path(tempfile.mkdtemp()), options, stack)
        try:
            scene.run(options.parts)
        finally:
            scene.close()
    return 1 if scene.found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
