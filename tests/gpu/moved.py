"""Programs moved between two cards, ten times, every byte looked at: by the bare calls, and by an appliance.

    python -m tests.gpu.moved [--docker] [--gpus SPEC] [--kinds KIND …] [--sizes GIB …] [--times N] [--seconds S]
        [--out FOLDER] [PART …]

KIND: torch, jax, cupy, graphs (a CUDA graph's loop). PART:
- `ways`: the driver's calls alone, with each way to name the cards, of a program that sees all cards, or its own by
  number or UUID; one that has only initialised CUDA. By default left out.
- `bare`: of the first kind, each size, four times; seconds out and in.
- `appliance`: `POST containers/ID/move/` of each kind and size; beside the bare calls. In Docker, before and after:
  what can be seen and used of cards from inside.
- `fixed`: one that sees its own card by CUDA_VISIBLE_DEVICES is moved, or comes back where it was.
- `drain`: a card is drained while six work on it.

`--docker`: containers of the engine that DOCKER_HOST names, or else of a dockerd that it starts; without it: local
processes. What there is too little time for is left out. Writes FOLDER/moved.json (FOLDER: $OUT), prints each figure as
it comes, exits 1 if anything is wrong. `--gpus sim:2x8GiB` tries it on simulated cards.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.gpu import host_image
from tests.gpu.bare_calls import Calls, Found, median
from tests.gpu.shim import NO_MULTICAST
from tests.support.appliance import ROOT, Appliance, until

GIB = 1 << 30
LONG = 180.0
JOB = ROOT / "tests/gpu/job_card.py"
KINDS, PARTS = ["torch", "jax", "cupy", "graphs"], ["bare", "appliance", "drain", "fixed"]
BARE_TIMES, SIX = 4, 6
SLOWER = 1.15  # times what the bare calls take
SLOWEST, BEGINS = 0.35, 20.0  # seconds out and in, of a GiB and of a start: to see what there is time for
ENVIRONMENT = NO_MULTICAST | {"PYTHONPATH": host_image.PATHS, "USER": "root", "HOME": "/tmp"}


class Job:
    process: subprocess.Popen[bytes]

    def __init__(self, gib: float, kind: str, *more: str) -> None:
        self.folder, self.numbers = Path(tempfile.mkdtemp()), itertools.count(1)
        self.folder.chmod(0o777)
        self.words = [sys.executable, str(JOB), str(self.folder), str(gib), kind, *more]

    def said(self, number: int) -> str:
        said = self.folder / "said"
        lines = [line.split() for line in said.read_text().split("\n")[:-1]] if said.exists() else []
        return next((word for at, word in lines if at == str(number)), "")

    def ended(self) -> str:
        """Why, and what it printed last; "" while it runs."""
        return f"exit code {self.process.returncode}" if self.process.poll() is not None else ""

    def answers(self, number: int) -> str:
        until(lambda: self.said(number) or self.ended(), LONG)
        if not self.said(number) and (why := self.ended()):
            raise RuntimeError(f"{' '.join(self.words)} ended: {why}")
        return self.said(number)

    def asked(self, what: str = "") -> str:
        number = next(self.numbers)
        (self.folder / "asking").write_text(f"{number} {what}")
        (self.folder / "asking").rename(self.folder / "ask")
        return self.answers(number)

    def is_right(self) -> bool:
        return self.asked() == "right"


@contextmanager
def running(job: Job, environment: dict[str, str]) -> Iterator[int]:
    with subprocess.Popen(job.words, env=environment, start_new_session=True) as process:
        job.process = process
        try:
            job.answers(0)
            yield process.pid
        finally:
            process.kill()


def swap(cards: Sequence[str], old: str, new: str) -> list[tuple[str, str]]:
    return [(card, {old: new, new: old}.get(card, card)) for card in cards]


class Contained(Job):
    def __init__(self, scene: Scene, name: str, gib: float, kind: str, card: str, *more: str) -> None:
        super().__init__(gib, kind if not scene.sim else "sim", *more)
        self.appliance = scene.appliance
        fields: dict[str, Any] = {"env": ENVIRONMENT}
        if scene.within:
            self.words[0] = host_image.PYTHON
            volumes = [*scene.within.volumes, f"{self.folder}:{self.folder}"]
            fields |= {"image": scene.within.image, "volumes": volumes}
        size = int((gib + 3) * GIB)
        self.id = self.appliance.launch(*self.words, name=name, gpu_memory=size, gpus=[card], **fields)["id"]

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
            return error.response.status_code, error.response.json().get("error", {}).get("message", str(error))

    def card(self) -> str:
        return str(self.appliance.api("GET", f"containers/{self.id}/")["gpus"][0]["uuid"])

    def took(self, kind: str) -> list[float]:
        events = self.appliance.api("GET", f"allocations/?container={self.id}&kind={kind}&page_size=100")["results"]
        return [float(took[1]) for each in events if (took := re.search(r"It took ([\d.]+) s", each["detail"]))]

    def end(self) -> None:
        self.appliance.api("POST", f"containers/{self.id}/kill/", {})
        until(lambda: self.appliance.api("GET", f"containers/{self.id}/")["finished_at"])


class Scene:
    def __init__(self, options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.options, self.sim = options, options.gpus.startswith("sim")
        self.found = Found(options.out / "moved.json", options.seconds)
        self.within = host_image.engine(stack) if options.docker else None
        more = self.within.settings if self.within else {}
        self.appliance = Appliance(
            folder / "home", options.gpus, GPUSHARE_GIVE_WAY="off", GPUSHARE_MOVE_SHARE="0", **more
        )  # fmt: skip
        stack.callback(self.appliance.close)
        self.cards = [card["uuid"] for card in self.appliance.api("GET", "gpus/")["results"]]
        self.outside = {**os.environ, **ENVIRONMENT, "NVIDIA_VISIBLE_DEVICES": self.cards[0]}
        self.outside.pop("CUDA_VISIBLE_DEVICES", None)

    def run(self, parts: Sequence[str]) -> None:
        steps = {"ways": self.ways, "fixed": self.fixed, "drain": self.drain}
        for part in [part for part in steps if part in parts and part != "drain"]:
            self.guarded(part, steps[part])
        for number, gib in enumerate(self.options.sizes):
            if "bare" in parts and not self.sim:
                self.guarded(f"bare, {gib:g} GiB", self.bare, gib)
            for kind in self.options.kinds if "appliance" in parts else ():
                self.guarded(f"{kind}, {gib:g} GiB", self.moved, kind, gib)
            if "drain" in parts and number == 0:
                self.guarded("drain", self.drain)

    def guarded(self, name: str, step: Any, *arguments: Any) -> None:
        """What goes wrong is told, and the next begins on empty cards."""
        try:
            step(*arguments)
        except Exception as error:
            traceback.print_exc()
            self.found.say(f"{name} ended with", f"{type(error).__name__}: {error}"[-4000:], fine=False)
            self.appliance.end_all()

    def ways(self) -> None:
        one, two = self.cards[:2]
        calls = Calls(self.outside)
        pairs = {"all cards named": swap(self.cards, one, two), "its own named": [(one, two)]}
        seen: dict[str, dict[str, str]] = {
            "sees all": {}, "sees its own by number": {"CUDA_VISIBLE_DEVICES": "0"},
            "sees its own by UUID": {"CUDA_VISIBLE_DEVICES": one},
        }  # fmt: skip
        for (who, more), (way, named) in itertools.product(seen.items(), pairs.items()):
            job = Job(1, "torch")
            with running(job, self.outside | more) as pid:
                went, _ = calls.out(pid)
                code, took = calls.back(pid, named)
                if code:
                    calls.back(pid)
                told = {"out": went, "in": code, "seconds": took, "right": job.is_right()}
                self.found.say(f"bare, {who}, {way}", told)
        job = Job(0.5, "init")
        with running(job, self.outside) as pid:
            went, _ = calls.out(pid)
            code, _ = calls.back(pid, pairs["all cards named"]) if not went else (went, 0.0)
            self.found.say("bare, initialised only", {"out": went, "in": code, "right": job.is_right()})
        calls.close()

    def bare(self, gib: float) -> None:
        here, there = self.cards[:2]
        if not self.found.has_time(name := f"bare, {gib:g} GiB", BEGINS + BARE_TIMES * gib * SLOWEST * 2):
            return
        calls, job = Calls(self.outside), Job(gib, self.options.kinds[0])
        outs, backs, codes, right = list[float](), list[float](), set[int](), True
        with running(job, self.outside | {"CUDA_VISIBLE_DEVICES": here}) as pid:
            for _ in range(BARE_TIMES):
                pairs = swap(self.cards, here, there)
                for (code, seconds), its in ((calls.out(pid), outs), (calls.back(pid, pairs), backs)):
                    codes.add(code)
                    its.append(seconds)
                here, there = there, here
                right &= job.is_right()
        calls.close()
        told = {"out": median(outs), "in": median(backs), "codes": sorted(codes), "right": right}
        self.found.say(name, told, codes == {0} and right)

    def moved(self, kind: str, gib: float) -> None:
        one, two = self.cards[:2]
        times = self.options.times
        if not self.found.has_time(name := f"{kind}, {gib:g} GiB", BEGINS + times * (0.5 + gib * SLOWEST * 2)):
            return
        job = Contained(self, f"{kind}-{gib:g}", gib, kind, one, *(["all"] if kind != "jax" else []))
        right, said = job.answers(0) == "right", set()
        self.inside(f"{name}, before", job)
        for number in range(times):
            there = (two, one)[number % 2]
            status, message = job.move(there)
            said.add(f"{status} {re.sub(r'[0-9]+', 'N', message)}")
            right &= status == 200 and job.card() == there and job.is_right()
            if number == 0:
                self.inside(f"{name}, on the other card", job)
        outs, backs = job.took("swapped_out"), job.took("swapped_in")
        told: dict[str, Any] = {"out": median(outs), "in": median(backs), "said": sorted(said), "right": right}
        self.found.say(f"{name}, {len(outs)} times", told, right and len(outs) == times)
        if before := self.found.figures.get(f"bare, {gib:g} GiB"):
            beside = (told["out"] + told["in"]) / (before["out"] + before["in"])
            self.found.say(f"{name}, times the bare calls", round(beside, 3), beside <= SLOWER)
        job.end()

    def inside(self, name: str, job: Contained) -> None:
        """In Docker on real cards: its own card is all that is there, that CUDA counts, and that can be opened."""
        if self.sim or not self.within:
            return
        told = json.loads(job.asked("look"))
        (code, uuids), own = json.loads(told["cuda"] or "[-1, []]"), job.card().removeprefix("GPU-").replace("-", "")
        alone = len(told["nodes"]) == 1 and (code, uuids) == (0, [own]) and told["made"] == ["EPERM"]
        self.found.say(f"{name}: seen inside", told | {"its own": own}, alone)

    def fixed(self) -> None:
        one, two = self.cards[:2]
        job = Contained(self, "fixed", self.options.sizes[0], self.options.kinds[0], one)
        job.answers(0)
        told = [*job.move(two), job.card() == two, job.is_right()]
        self.found.say("sees its own by CUDA_VISIBLE_DEVICES", told, told[3])
        job.end()

    def drain(self) -> None:
        one, two = self.cards[:2]
        if not self.found.has_time("drain", 120):
            return
        kinds, gib = itertools.cycle(self.options.kinds), self.options.sizes[0]
        jobs = [Contained(self, f"d{at}", gib, next(kinds), one, "works") for at in range(SIX)]
        for job in jobs:
            job.answers(0)
        self.appliance.api("POST", f"gpus/{one}/drain/", {"note": "a trial"})
        begun = time.monotonic()
        until(lambda: all(job.card() == two for job in jobs) or any(job.ended() for job in jobs), LONG)
        took = round(time.monotonic() - begun, 1)
        self.found.say(f"a drained card is left by {SIX} that work after", f"{took} s")
        found = [job.is_right() for job in jobs]
        self.found.say("who was on it is right", found, all(found))
        states = {self.appliance.api("GET", f"containers/{job.id}/")["state"] for job in jobs}
        self.found.say("who was on it is", sorted(states), states == {"running"})
        for job in jobs:
            job.end()
        self.appliance.api("POST", f"gpus/{one}/undrain/", {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--docker", action="store_true")
    parser.add_argument("--gpus", default="nvidia")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1.0, 8.0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=520.0)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    with ExitStack() as stack:
        scene = Scene(options, folder, stack)
        try:
            scene.run(options.parts or PARTS)
        finally:
            log = folder / "home.log"
            (options.out / "moved-appliance.log").write_bytes(log.read_bytes()[-200_000:] if log.exists() else b"")
    return 1 if scene.found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
