"""Programs moved between two cards, ten times, every byte looked at: by the bare calls, and by an appliance.

    python -m tests.gpu.moved [--docker] [--access WAY] [--gpus SPEC] [--cards INDEX INDEX] [--kinds KIND …]
        [--sizes GIB …] [--times N] [--bare N] [--seconds S] [--out FOLDER] [PART …]

KIND: torch, jax, cupy, graphs (a CUDA graph's loop). PART:
- `appliance`: `POST containers/ID/move/` of each kind and size, `--times`. The first `--bare` times, in turn with the
  driver's calls alone on the same program outside. In Docker, before and after: what can be seen and used of cards
  from inside.
- `fixed`: one that sees its own card by CUDA_VISIBLE_DEVICES, as it comes, by number or by UUID, is moved, or comes
  back where it was.
- `updated`: what is seen and used of cards after `docker update`.
- `pages`: the same of each kind and size in two containers in turn, of which one can have no huge pages: what those of
  the shim are worth.
- `drain`: a card is drained while six work on it.

`--docker`: containers of the engine that DOCKER_HOST names, or else of a dockerd that it starts; without it: local
processes. `--access`: how cards come into containers, raw or cdi (with a specification that is made for it). What there
is too little time for is left out. Writes FOLDER/moved.json (FOLDER: $OUT), prints each figure as
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

import docker
import httpx

from scheduler.engines.docker import gpu_access
from tests.gpu import host_image
from tests.gpu.bare_calls import Calls, Found, median
from tests.gpu.shim import NO_MULTICAST
from tests.support.appliance import ROOT, Appliance, until
from tests.support.dockerd import FLAGS

GIB = 1 << 30
MORE = 3  # GiB that a container may hold besides
LONG = 180.0
JOB = ROOT / "tests/gpu/job_card.py"
KINDS, PARTS = ["torch", "jax", "cupy", "graphs"], ["appliance", "drain", "fixed"]
SIX = 6
SIZES: dict[str, tuple[str, ...]] = {"huge": (), "small": ("small",)}  # of pages
FASTER = 1.4
BOTH_FIT = 16  # GiB: with what is larger, a card has no room for one in the appliance and one outside at once
SLOWER = 1.15  # times what the bare calls take
SLOWEST, BEGINS = 0.2, 20.0  # seconds out and in, of a GiB and of a start: to see what there is time for
ENVIRONMENT = NO_MULTICAST | {"PYTHONPATH": host_image.PATHS, "CPUS": host_image.CPUS, "USER": "root", "HOME": "/tmp"}
PART = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # of the memory that JAX sees: in a container, its quota


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


def with_cdi(folder: Path) -> None:
    """Every card by a specification of its own, for the engine that is started next."""
    folder.mkdir()
    raw = gpu_access.raw()
    cards = [{"name": gpu, "containerEdits": {"deviceNodes": [{"path": path}]}} for gpu, path in raw.nodes.items()]
    searched = sorted({str(Path(path).parent) for path in raw.libraries.values()})
    edits = {"deviceNodes": [{"path": path} for path in raw.control], "env": [f"LD_LIBRARY_PATH={':'.join(searched)}"]}
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": cards, "containerEdits": edits}
    (folder / "nvidia.json").write_text(json.dumps(spec))
    os.environ[FLAGS] = f"{os.environ.get(FLAGS, '')} --cdi-spec-dir={folder}"


class Bare:
    """A program outside, moved between the two cards by the driver's calls alone."""

    def __init__(self, scene: Scene, kind: str, gib: float, stack: ExitStack) -> None:
        self._cards, (self._here, self._there) = scene.cards, scene.two
        self.outs, self.backs, self.right = list[float](), list[float](), True
        self._job = Job(gib, kind)
        part = 0.95 * (gib + MORE) * GIB / scene.memory
        environment = scene.outside | {"CUDA_VISIBLE_DEVICES": self._here, PART: f"{part:.3f}"}
        self._pid = stack.enter_context(running(self._job, environment))
        self._calls = Calls(scene.outside)
        stack.callback(self._calls.close)

    def move(self) -> None:
        pairs = swap(self._cards, self._here, self._there)
        for (code, seconds), its in (
            (self._calls.out(self._pid), self.outs),
            (self._calls.back(self._pid, pairs), self.backs),
        ):
            self.right &= code == 0
            its.append(seconds)
        self._here, self._there = self._there, self._here
        self.right &= self._job.is_right()

    def figures(self) -> dict[str, Any]:
        return {
            "out": median(self.outs),
            "in": median(self.backs),
            "each": [self.outs, self.backs],
            "right": self.right,
        }


class Contained(Job):
    def __init__(self, scene: Scene, name: str, gib: float, kind: str, card: str, *more: str) -> None:
        super().__init__(gib, kind if not scene.sim else "sim", *more)
        self.appliance = scene.appliance
        fields: dict[str, Any] = {"env": ENVIRONMENT | {PART: "0.95"}}
        if scene.within:
            self.words[0] = host_image.PYTHON
            volumes = [*scene.within.volumes, f"{self.folder}:{self.folder}"]
            fields |= {"image": scene.within.image, "volumes": volumes}
        size = int((gib + MORE) * GIB)
        self.id = self.appliance.launch(*self.words, name=name, gpu_memory=size, gpus=[card], **fields)["id"]

    def ended(self) -> str:
        row = self.appliance.api("GET", f"containers/{self.id}/")
        if not row["finished_at"]:
            return ""
        token = {"Authorization": f"Token {self.appliance.token}"}
        output = httpx.get(f"{self.appliance.url}/api/v1/containers/{self.id}/logs/", headers=token, timeout=30).text
        return f"{row['state']}, exit code {row['exit_code']}, {row['reason']!r}. It printed:\n{output[-4000:]}"

    def move(self, card: str) -> tuple[int, str]:
        try:  # a busy machine answers with the container, once it is done
            answer = self.appliance.api("POST", f"containers/{self.id}/move/", {"gpu": card})
            return 200, answer.get("message", "")
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
        if options.access == "cdi":
            with_cdi(folder / "cdi")
        self.within = host_image.engine(stack) if options.docker else None
        more = (self.within.settings if self.within else {}) | {"GPUSHARE_GPU_ACCESS": options.access}
        self.appliance = Appliance(
            folder / "home", options.gpus, GPUSHARE_GIVE_WAY="off", GPUSHARE_MOVE_SHARE="0", **more
        )  # fmt: skip
        stack.callback(self.appliance.close)
        listed = self.appliance.api("GET", "gpus/")["results"]
        self.cards, self.memory = [card["uuid"] for card in listed], listed[0]["total"]
        self.two = [self.cards[index] for index in options.cards]
        self.outside = {**os.environ, **ENVIRONMENT, "NVIDIA_VISIBLE_DEVICES": self.two[0]}
        self.outside.pop("CUDA_VISIBLE_DEVICES", None)

    def run(self, parts: Sequence[str]) -> None:
        steps = {"fixed": self.fixed, "updated": self.updated, "pages": self.pages}
        for part in [part for part in steps if part in parts]:
            self.guarded(part, steps[part])
        for number, gib in enumerate(self.options.sizes):
            for kind in self.options.kinds if "appliance" in parts else ():
                self.guarded(f"{kind}, {gib:g} GiB", self.moved, kind, gib)
            if "drain" in parts and number == 0:
                self.guarded("drain", self.drain)

    def guarded(self, name: str, step: Any, *arguments: Any) -> None:
        """What goes wrong is reported, and the next begins on empty cards."""
        try:
            step(*arguments)
        except Exception as error:
            traceback.print_exc()
            self.found.say(f"{name} ended with", f"{type(error).__name__}: {error}"[-4000:], fine=False)
            self.appliance.end_all()

    def moved(self, kind: str, gib: float) -> None:
        times, bare_times = self.options.times, 0 if self.sim else self.options.bare
        needs = BEGINS + (times + bare_times) * (0.5 + gib * SLOWEST * 2)
        least = BEGINS + (min(times, 2) + min(bare_times, 1)) * (0.5 + gib * SLOWEST * 2)
        if not self.found.has_time(name := f"{kind}, {gib:g} GiB", least):
            return
        with ExitStack() as stack:
            bare = Bare(self, kind, gib, stack) if bare_times else None
            if bare and gib > BOTH_FIT:
                for _ in range(bare_times):
                    bare.move()
                stack.close()
            job = Contained(self, f"{kind}-{gib:g}", gib, kind, self.two[0], *(["all"] if kind != "jax" else []))
            right, said = job.answers(0) == "right", set()
            self.inside(f"{name}, before", job)
            for number in range(times):
                if number > 1 and self.found.left < 2 * needs / (times + bare_times):
                    break
                if bare and gib <= BOTH_FIT and number < bare_times:
                    bare.move()
                there = self.two[1 - number % 2]
                status, message = job.move(there)
                said.add(f"{status} {re.sub(r'[0-9]+', 'N', message)}")
                right &= status == 200 and job.card() == there and job.is_right()
                if number == 0:
                    self.inside(f"{name}, on the other card", job)
            outs, backs = job.took("swapped_out"), job.took("swapped_in")
            figures: dict[str, Any] = {"out": median(outs), "in": median(backs), "said": sorted(said), "right": right}
            self.found.say(f"{name}, {len(outs)} times", figures, right and len(outs) == times)
            self.found.say(f"{name}: each", [outs, backs])
            if bare:
                self.found.say(f"{name}, bare", bare.figures(), bare.right)
                beside = (figures["out"] + figures["in"]) / (median(bare.outs) + median(bare.backs))
                self.found.say(f"{name}, times the bare calls", round(beside, 3), beside <= SLOWER)
            job.end()

    def inside(self, name: str, job: Contained) -> None:
        """In Docker on real cards: its own card is all that is there, that CUDA counts, and that can be opened."""
        if self.sim or not self.within:
            return
        seen = json.loads(job.asked("look"))
        (code, uuids), own = json.loads(seen["cuda"] or "[-1, []]"), job.card().removeprefix("GPU-").replace("-", "")
        alone = len(seen["nodes"]) == 1 and (code, uuids) == (0, [own]) and seen["made"] == ["EPERM"]
        self.found.say(f"{name}: seen inside", seen | {"its own": own}, alone)

    def fixed(self) -> None:
        one, two = self.two
        for way, more in {"as it comes": (), "by number": ("by=0",), "by UUID": (f"by={one}",)}.items():
            job = Contained(self, "fixed", self.options.sizes[0], self.options.kinds[0], one, *more)
            job.answers(0)
            outcome = [*job.move(two), job.card() == two, job.is_right()]
            self.found.say(f"sees its own by CUDA_VISIBLE_DEVICES, {way}", outcome, outcome[3])
            outcome = [*job.move(one), job.card() == one, job.is_right()]
            self.found.say(f"sees its own by CUDA_VISIBLE_DEVICES, {way}, and back", outcome, outcome[3])
            job.end()

    def updated(self) -> None:
        if self.sim or not self.within:
            return
        job = Contained(self, "updated", 1, self.options.kinds[0], self.two[0], "all")
        job.answers(0)
        self.inside("updated, before", job)
        engine = docker.APIClient(os.environ["DOCKER_HOST"], version="auto")
        (its,) = engine.containers(quiet=True)
        engine.update_container(its["Id"], cpu_shares=512)
        self.inside("updated, once", job)
        status, message = job.move(self.two[1])
        engine.update_container(its["Id"], cpu_shares=1024)
        self.inside("updated, after a move", job)
        engine.close()
        right = job.is_right()
        self.found.say("updated: moved, right", [status, message, right], status == 200 and right)
        job.end()

    def pages(self) -> None:
        """Out with the shim's huge pages and without, in turn."""
        for gib, kind in itertools.product(self.options.sizes, self.options.kinds):
            jobs = [
                Contained(self, f"pages-{at}", gib, kind, self.two[0], *more) for at, more in enumerate(SIZES.values())
            ]
            right = all(job.answers(0) == "right" for job in jobs)
            for number in range(self.options.times):
                if number > 1 and self.found.left < 5 + 3 * gib:
                    break
                for job in jobs[:: 1 if number % 2 else -1]:
                    right &= job.move(self.two[1 - number % 2])[0] == 200 and job.is_right()
            took = {
                name: [job.took("swapped_out"), job.took("swapped_in")] for name, job in zip(SIZES, jobs, strict=True)
            }
            self.found.say(f"{kind}, {gib:g} GiB, by size of pages: each", took, right)
            out, back = ([median(its[way]) for its in took.values()] for way in (0, 1))
            faster = round(out[1] / max(out[0], 0.01), 2)
            figures = {"out": out, "in": back, "out is faster": faster}
            self.found.say(f"{kind}, {gib:g} GiB, huge pages and small ones", figures, faster >= FASTER or self.sim)
            for job in jobs:
                job.end()

    def drain(self) -> None:
        one, two = self.two
        if not self.found.has_time("drain", 60):
            return
        kinds, gib = itertools.cycle(self.options.kinds), self.options.sizes[0]
        jobs = [Contained(self, f"d{at}", gib, next(kinds), one, "works") for at in range(SIX)]
        for job in jobs:
            job.answers(0)
        for card in [card for card in self.cards if card != two]:
            self.appliance.api("POST", f"gpus/{card}/drain/", {"note": "a trial"})
        begun = time.monotonic()
        until(lambda: all(job.card() == two for job in jobs) or any(job.ended() for job in jobs), LONG / 2)
        took = round(time.monotonic() - begun, 1)
        self.found.say(f"a drained card is left by {SIX} that work after", f"{took} s")
        found = [job.is_right() for job in jobs]
        self.found.say("who was on it is right", found, all(found))
        states = {self.appliance.api("GET", f"containers/{job.id}/")["state"] for job in jobs}
        self.found.say("who was on it is", sorted(states), states == {"running"})
        for job in jobs:
            job.end()
        for card in [card for card in self.cards if card != two]:
            self.appliance.api("POST", f"gpus/{card}/undrain/", {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--docker", action="store_true")
    parser.add_argument("--access", default="auto", choices=["auto", "raw", "cdi"])
    parser.add_argument("--gpus", default="nvidia")
    parser.add_argument("--cards", type=int, nargs=2, default=[0, 1], help="which of the host's")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1.0, 8.0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--bare", type=int, default=4, help="of these times, so many beside the bare calls")
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
