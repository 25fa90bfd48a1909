"""Turns of computing on a real card, in Docker containers: shares, the work in sum, and what a lone one pays.

Programs stay for the whole run; each test says which of them compute. Figures are written down as they come.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from scheduler.card.helper import CardError, CardHelper, State
from tests.gpu import host_image
from tests.gpu.conftest import Appliance
from tests.gpu.swapped import on_card
from tests.gpu.turned import Contained, Job, all_ready, beside, computing, measured, share_by
from tests.support.constants import with_constants

pytestmark = [pytest.mark.gpu, pytest.mark.docker, pytest.mark.timeout(400)]
Record = Callable[[str], None]
TRAININGS = {"cnn": 50, "transformer": 30, "ahead": 20}
PAIRS = [(75, 25), (90, 10), (50, 50)]
NEAR = 0.03  # a share's distance from what is due
MOST = 8
KILLS, STEPS = 18, 100
PARTS = ("scheduler", "helper", "guardian")
HARMED = [those for size in (1, 2) for those in combinations(PARTS, size)]
DEEDS = ["pause", "resume", "resume", "weight", "limit", "rest"] * 5 + ["swap", "mode"] * 2 + ["kill"]


class Scene:
    """All programs, in containers; each computes only when it is asked to. `alone`: units a second of each."""

    def __init__(self, appliance: Appliance, folder: Path) -> None:
        self.appliance = appliance
        folder.mkdir()
        self.folder = folder
        self.gemms = [Contained(appliance, "gemm", folder, f"gemm-{number}") for number in range(MOST)]
        self.trainings = [Contained(appliance, kind, folder, kind) for kind in TRAININGS]
        self.notebook = Contained(appliance, "notebook", folder, "notebook")
        self.alone: dict[str, float] = {}
        all_ready(appliance, [*self.gemms, *self.trainings, self.notebook])

    def rate_alone(self, job: Job, seconds: float = 4.0) -> float:
        if job.kind not in self.alone:
            self.alone[job.kind] = job.rate(*measured(job, seconds=seconds, settle=2.5))
        return self.alone[job.kind]

    def parts(self, jobs: Sequence[Job], begin: float, end: float) -> tuple[list[float], float]:
        """Each one's share of the work that was done, and that work in sum: 1 is one alone."""
        parts = [job.rate(begin, end) / self.rate_alone(job) for job in jobs]
        return [part / sum(parts) for part in parts], sum(parts)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, image: str, record: Record) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("turns")
    results = Path(os.environ.get("GPU_TEST_RESULTS", str(folder)))
    roots = " ".join([*host_image.ROOTS, str(Path(__file__).parent), str(folder)])
    running = Appliance(
        folder / "home", os.environ.get("GPU_TEST_GPUS", "nvidia"), results / "appliance-turns.log",
        GPUSHARE_VOLUME_ROOTS=roots, GPUSHARE_COMPUTE="turns",
    )  # fmt: skip
    running.start()
    begun = time.monotonic()
    scene = Scene(running, folder / "jobs")
    record(f"turns: {MOST + len(TRAININGS) + 1} programs ready in {time.monotonic() - begun:.0f} s")
    gpu = running.client.get("/api/v1/gpus/").json()["results"][0]
    record(f"turns: the card's computing is {gpu['compute']}: {gpu['compute_why']}")
    yield scene
    running.stop()


def shown(values: Sequence[float]) -> str:
    return " / ".join(f"{100 * value:.1f}" for value in values)


def test_two_gemm_loops_have_what_their_weights_say(scene: Scene, record: Record) -> None:
    pair = scene.gemms[:2]
    alone = scene.rate_alone(pair[0])
    share_by(scene.appliance, "shared")
    shares, total = scene.parts(pair, *measured(*pair, seconds=5))
    record(f"two GEMM loops, {alone:.0f} a second alone; at once, by the driver: {shown(shares)} %, in sum {total:.3f}")
    share_by(scene.appliance, "turns")
    wrong = []
    for weights in PAIRS:
        for job, weight in zip(pair, weights, strict=True):
            job.change(compute_weight=weight)
        span = measured(*pair, seconds=10, settle=2.5)
        shares, total = scene.parts(pair, *span)
        record(f"two GEMM loops in turns {weights[0]}/{weights[1]}: {shown(shares)} %, in sum {total:.3f} of one alone")
        if abs(shares[0] - weights[0] / sum(weights)) > NEAR or total < 0.97:
            wrong.append(weights)
    for job in pair:
        job.change(compute_weight=100)
    assert not wrong


def test_a_limit_is_kept_although_nobody_else_computes(scene: Scene, record: Record) -> None:
    job = scene.gemms[0]
    alone = scene.rate_alone(job)
    job.change(compute_limit=30)
    part = job.rate(*measured(job, seconds=10, settle=2)) / alone
    job.change(compute_limit=None)
    record(f"a lone GEMM loop with a limit of 30 %: {100 * part:.1f} %")
    assert part == pytest.approx(0.30, abs=0.02)


def test_three_trainings(scene: Scene, record: Record) -> None:
    jobs, weights = scene.trainings, list(TRAININGS.values())
    alone = [scene.rate_alone(job, 5.0) for job in jobs]
    rates = ", ".join(f"{job.kind} {rate:.1f}" for job, rate in zip(jobs, alone, strict=True))
    record(f"three trainings alone, steps a second: {rates}")
    share_by(scene.appliance, "shared")
    span = measured(*jobs, seconds=12)
    shares, total = scene.parts(jobs, *span)
    record(f"three trainings at once, by the driver: {shown(shares)} %, in sum {total:.3f}")
    share_by(scene.appliance, "turns")
    for job, weight in zip(jobs, weights, strict=True):
        job.change(compute_weight=weight)
    span = measured(*jobs, seconds=12, settle=3)
    shares, total = scene.parts(jobs, *span)
    record(f"three trainings in turns {'/'.join(map(str, weights))}: {shown(shares)} %, in sum {total:.3f}")
    for share, weight in zip(shares, weights, strict=True):
        assert share == pytest.approx(weight / sum(weights), abs=NEAR)
    assert total > 0.97


def test_eight_of_equal_weight(scene: Scene, record: Record) -> None:
    share_by(scene.appliance, "turns")
    # NVML names one process a look: before each was named they compute at once.
    span = measured(*scene.gemms, seconds=10, settle=15.0)
    shares, total = scene.parts(scene.gemms, *span)
    record(f"eight GEMM loops of equal weight: {shown(shares)} %, in sum {total:.3f}")
    assert all(share == pytest.approx(1 / MOST, abs=NEAR) for share in shares)
    assert total > 0.97


def test_a_lone_container_pays_nothing(scene: Scene, record: Record) -> None:
    """In turns with the same program beside it, so that the card's clocks meet both."""
    ours, rates = scene.gemms[0], {"native": 0.0, "ours": 0.0}
    with beside("gemm", scene.folder, "native") as native:
        for _ in range(3):
            for name, job in (("native", native), ("ours", ours)):
                rates[name] += job.rate(*measured(job, seconds=3, settle=0.7)) / 3
    ratio = rates["ours"] / rates["native"]
    record(f"a lone container: {rates['ours']:.2f} GEMMs a second, native {rates['native']:.2f}: {ratio:.4f}")
    assert ratio > 0.998 - 0.004  # what two native runs differ by in three seconds


def latencies(record: Record, what: str, scene: Scene, seconds: float, *others: Job) -> None:
    with computing(*others, settle=1.5 if others else 0.0):
        begin, end = measured(scene.notebook, seconds=seconds, settle=1.5)
        part = "".join(f"; {job.kind} {job.rate(begin, end) / scene.rate_alone(job):.3f} of alone" for job in others)
    took = scene.notebook.bursts(begin, end)
    if not took:
        record(f"a notebook's bursts of 50 ms {what}: none was done")
        return
    p99 = took[min(len(took) - 1, int(0.99 * len(took)))]
    record(
        f"a notebook's bursts of 50 ms {what}: median {1e3 * took[len(took) // 2]:.0f} ms, p99 {1e3 * p99:.0f} ms "
        f"({len(took)}){part}"
    )


def test_a_notebook_beside_a_training(scene: Scene, record: Record) -> None:
    training = scene.trainings[0]
    scene.rate_alone(training, 5.0)
    latencies(record, "alone", scene, 8)
    share_by(scene.appliance, "shared")
    latencies(record, "beside a CNN's training, at once by the driver", scene, 12, training)
    share_by(scene.appliance, "turns")
    for job in (training, scene.notebook):
        job.change(compute_weight=100)
    for cycle in ("1", "0.2", "3"):
        if cycle != "1":
            scene.appliance._environ |= with_constants({"scheduler.card.turns.CYCLE": float(cycle)})
            scene.appliance.stop()
            scene.appliance.start()
        latencies(record, f"beside a CNN's training, in turns with a cycle of {cycle} s", scene, 16, training)


def parts_of(appliance: Appliance) -> dict[str, list[int]]:
    """The scheduler, its helper's workers and the guardian, by pid."""
    scheduler = appliance.part("scheduler")
    found: dict[str, list[int]] = {"scheduler": [scheduler], "helper": [], "guardian": []}
    for pid in map(int, Path(f"/proc/{scheduler}/task/{scheduler}/children").read_text().split()):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            for name, sign in (("helper", b"card/worker.py"), ("guardian", b"/guardian\0")):
                if sign in words:
                    found[name].append(pid)
    return found


async def until_all_go_on(pids: set[int]) -> float:
    """Seconds until none of them is locked."""
    helper, begun = CardHelper(), time.monotonic()
    try:
        while time.monotonic() < begun + 20:
            states = []
            for pid in pids:
                with suppress(CardError):
                    states.append(await helper.state(pid, 10))
            if State.LOCKED not in states:
                break
        return time.monotonic() - begun
    finally:
        await helper.close()


def test_whoever_is_killed_nobody_stays_locked(scene: Scene, record: Record) -> None:
    share_by(scene.appliance, "turns")
    jobs, chance, longest, wrong = scene.gemms[:3], random.Random(7), 0.0, []
    with computing(*jobs, settle=2):
        for number in range(KILLS):
            killed = HARMED[number % len(HARMED)]
            parts = parts_of(scene.appliance)
            time.sleep(chance.random())
            for pid in (pid for name in killed for pid in parts[name]):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            what = f"kill {number + 1} of {'+'.join(killed)}"
            if "scheduler" in killed:
                took = asyncio.run(until_all_go_on(on_card()))
                longest = max(longest, took)
                if took > 1.5:  # a helper has to begin before it can be asked
                    wrong.append(f"{what}: somebody was locked for {took:.1f} s")
                scene.appliance.until(partial(another_scheduler, scene.appliance, parts["scheduler"][0]), "another", 60)
                scene.appliance.until(scene.appliance.ready, "the new scheduler to be ready")
            begin = time.time()
            time.sleep(2.5)
            if still := [job.name for job in jobs if job.rate(begin, begin + 2.4) <= 0]:
                wrong.append(f"{what}: {still} did not go on")
            record(f"{what}: {wrong[-1] if wrong else 'all go on'}")
    record(
        f"{KILLS} kills of scheduler, helper, guardian and any two: nobody was locked after {longest:.2f} s at most, "
        f"0.2 s of the asking included; wrong: {wrong}"
    )
    assert not wrong


def another_scheduler(appliance: Appliance, killed: int) -> bool:
    with suppress(StopIteration, OSError):
        return appliance.part("scheduler") != killed
    return False


def test_a_hundred_random_steps(scene: Scene, record: Record) -> None:
    """Pauses, swaps, weights, limits, rests and restarts while three take turns; afterwards all compute."""
    jobs, chance, appliance = scene.gemms[:3], random.Random(11), scene.appliance
    counted: Counter[str] = Counter()
    alone = scene.rate_alone(jobs[0])
    share_by(appliance, "turns")
    begun = time.monotonic()
    with computing(*jobs, settle=1):
        for _ in range(STEPS):
            job, deed = chance.choice(jobs), chance.choice(DEEDS)
            counted[deed] += 1
            if deed in ("pause", "resume"):
                appliance.command(job.id, deed)
            elif deed == "swap":
                appliance.command(job.id, "pause", free_memory=True)
            elif deed == "weight":
                job.change(compute_weight=chance.choice([1, 50, 100, 1000]))
            elif deed == "limit":
                job.change(compute_limit=chance.choice([None, 10, 60]))
            elif deed == "rest":
                job.go(chance.random() < 0.5)
            elif deed == "mode":
                share_by(appliance, chance.choice(["turns", "shared"]))
            elif deed == "kill":
                killed = appliance.part("scheduler")
                os.kill(killed, signal.SIGKILL)
                appliance.until(partial(another_scheduler, appliance, killed), "another scheduler", 60)
                appliance.until(appliance.ready, "the new scheduler to be ready")
            time.sleep(chance.random() * 0.4)
        share_by(appliance, "turns")
        for job in jobs:
            appliance.command(job.id, "resume")
            job.change(compute_weight=100, compute_limit=None)
            job.go()
        for job in jobs:
            appliance.state_becomes(job.id, "running")
        time.sleep(12)  # what they owe is paid, and NVML has named each of them
        begin = time.time()
        time.sleep(6.3)
        rates = [job.rate(begin, begin + 6) / alone for job in jobs]
    record(f"{STEPS} random steps {dict(counted)} in {time.monotonic() - begun:.0f} s; then {shown(rates)} % each")
    assert all(rate == pytest.approx(1 / len(jobs), abs=0.05) for rate in rates)
