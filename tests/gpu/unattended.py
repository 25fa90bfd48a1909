"""Plays trials of this folder one after the other, with nobody there: on two cards, or on four two of them at once.

    python -m tests.gpu.unattended FOLDER [--seconds 1200] [--gpus nvidia] [--only NAME …] [--list]

Each part is a command with a time of its own. FOLDER/NAME/ has what it wrote, FOLDER/progress a line for its begin and
its end, FOLDER/all.log what those that have ended printed. Parts come in order of their worth; one for which too little
time is left is left out, and all once it is asked to end (SIGTERM). On four cards or more the parts on moves have the
cards 0 and 1, the others 2 and 3, and each half of the processors. Whatever a part started is gone once it has ended.
`--gpus sim:4x80GiB` tries all of it on simulated cards.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.appliance import ROOT

MARK = "GPU_TRIAL"  # in the environment of all that a part starts: its name
CLOSES = 40.0  # seconds that a part has to end what it started
SMI = ["nvidia-smi", "--query-gpu=index,uuid,name,driver_version,memory.total", "--format=csv,noheader"]


@dataclass(frozen=True)
class Part:
    """`least`: seconds without which it is not begun; `most`: when it is ended. {cards}, {seconds}: what it has."""

    name: str
    least: float
    most: float
    words: str

    def command(self, cards: Sequence[int], gpus: str, folder: Path, seconds: float) -> list[str]:
        named = self.words.format(cards=" ".join(map(str, cards)), card=cards[0], seconds=round(seconds), out=folder)
        return [sys.executable, "-u", "-m", *named.split(), *([] if "shim" in named else ["--gpus", gpus])]


def moved(name: str, least: float, most: float, words: str) -> Part:
    return Part(name, least, most, f"tests.gpu.moved {words} --docker --cards {{cards}} --seconds {{seconds}}")


def ranked(name: str, least: float, most: float, parts: str) -> Part:
    words = f"tests.gpu.ranked --docker --cards {{cards}} --within {{seconds}} --parts {parts}"
    return Part(name, least, most, words)


KINDS = ["torch", "jax", "cupy", "graphs"]
EACH = f"--kinds {' '.join(KINDS)}"
MOVES = [
    moved("host", 40, 100, "appliance --kinds torch --sizes 1 --times 2 --bare 1"),
    moved("pages", 50, 150, "pages --kinds torch --sizes 8 --times 5"),
    moved("moved-1", 60, 200, f"appliance {EACH} --sizes 1 --times 10 --bare 3"),
    moved("moved-8", 80, 300, f"appliance {EACH} --sizes 8 --times 10 --bare 3"),
    moved("moved-8-rest", 80, 200, "appliance --kinds graphs cupy --sizes 8 --times 10 --bare 3"),
    moved("drain", 75, 110, f"drain {EACH} --sizes 1"),
    moved("fixed", 40, 100, "fixed --kinds torch --sizes 1"),
    moved("updated-raw", 30, 70, "updated --access raw --kinds torch"),
    moved("updated-cdi", 30, 70, "updated --access cdi --kinds torch"),
    *(moved(f"moved-30-{kind}", 90, 280, f"appliance --kinds {kind} --sizes 30 --times 10 --bare 2") for kind in KINDS),
]
RANKS = [
    Part("costs", 30, 75, "tests.gpu.shim.gate --out {out}"),
    ranked("pairs", 110, 250, "compiled jax graphs pipeline"),
    ranked("jax", 60, 110, "jax"),
    ranked("random", 80, 170, "random"),
    ranked("harm", 70, 150, "abort dies"),
    ranked("moved-ddp", 60, 130, "moved-ddp"),
    ranked("small", 250, 330, "small"),
    ranked("ddp-hang", 80, 120, "ddp hang"),
    Part("woken", 60, 150, "tests.gpu.woken --docker --card {card} --seconds {seconds}"),
    Part("people", 150, 700, "tests.gpu.people {out}/made --docker --card {card} --until {seconds}"),
    Part("costs-2", 30, 75, "tests.gpu.shim.gate --out {out}"),
    ranked("small-2", 250, 330, "small"),
]
# On two cards, one after the other: what was never recorded first.
TURNS = (
    "host costs pages pairs moved-1 random moved-8 harm moved-ddp drain updated-cdi updated-raw fixed small"
    " moved-30-torch moved-30-jax moved-30-cupy moved-30-graphs woken costs-2 small-2"
)


class Strand(threading.Thread):
    def __init__(self, parts: Sequence[Part], cards: Sequence[int], cpus: set[int], its: Run) -> None:
        super().__init__()
        self.parts, self.cards, self.cpus, self.its = parts, cards, cpus, its

    def run(self) -> None:
        for part in self.parts:
            try:
                self.its.play(part, self.cards, self.cpus)
            except Exception as error:
                self.its.tell(f"{part.name} could not be played: {error!r}")


class Run:
    def __init__(self, folder: Path, seconds: float, gpus: str) -> None:
        self.folder, self.gpus, self.ends = folder, gpus, time.monotonic() + seconds
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[bytes]] = set()
        self.uuids: list[str] = []

    def tell(self, line: str) -> None:
        left = self.ends - time.monotonic()
        with self.lock, (self.folder / "progress").open("a") as progress:
            print(f"{time.strftime('%H:%M:%S')} [{left:.0f}] {line}", file=progress)

    def play(self, part: Part, cards: Sequence[int], cpus: set[int]) -> None:
        left = self.ends - time.monotonic() - CLOSES
        if left < part.least:
            self.tell(f"{part.name} left out: it takes {part.least:.0f} s")
            return
        seconds, folder, mark = min(left, part.most), self.folder / part.name, f"{part.name}-{uuid.uuid4()}"
        folder.mkdir(exist_ok=True)
        environment = os.environ | {MARK: mark, "OUT": str(folder)}
        if self.uuids and "shim" in part.words:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.uuids[card] for card in cards)
        command = part.command(cards, self.gpus, folder, seconds - 10)
        self.tell(
            f"{part.name} begins, for {seconds:.0f} s at most, cards {list(cards)}, load {os.getloadavg()[0]:.1f}"
        )
        begun = time.monotonic()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=lambda: prepare(cpus), start_new_session=True,
            )  # fmt: skip
            self.running.add(process)
            code = self.ended(process, seconds)
            self.running.discard(process)
        left_over = sweep(mark)
        printed = (folder / "log").read_text(errors="replace")
        wrong = [name for path in folder.glob("*.json") for name in json.loads(path.read_text()).get("wrong", [])]
        with self.lock, (self.folder / "all.log").open("a") as log_of_all:
            print(f"## {part.name}: {' '.join(command[2:])}, rc {code}\n{printed}", file=log_of_all)
        took, more = time.monotonic() - begun, f", {left_over} processes were left" if left_over else ""
        self.tell(f"{part.name} ended, rc {code}, after {took:.0f} s{more}; wrong: {wrong}")

    def stop(self, *_: object) -> None:
        """Nothing more begins, and what runs is ended."""
        self.ends = 0.0
        for process in list(self.running):
            process.send_signal(signal.SIGINT)

    @staticmethod
    def ended(process: subprocess.Popen[bytes], seconds: float) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(seconds)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(CLOSES - 10)
        process.kill()
        return process.wait()


def prepare(cpus: set[int]) -> None:
    os.sched_setaffinity(0, cpus)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored


def sweep(mark: str) -> int:
    """Ends what is left of a part, and what came of that; how many there were."""
    found = 0
    for _ in range(5):
        parents: dict[int, int] = {}
        marked = set()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(path.name)
                parents[pid] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    marked.add(pid)
        while more := {pid for pid, parent in parents.items() if parent in marked} - marked:
            marked |= more
        if not marked:
            break
        found += len(marked)
        for pid in marked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
    return found


def cards_of(gpus: str) -> tuple[int, list[str], str]:
    if gpus.startswith("sim:"):
        return int(gpus.removeprefix("sim:").partition("x")[0]), [], gpus
    output = subprocess.run(SMI, capture_output=True, text=True, check=True).stdout
    return len(output.splitlines()), [line.split(", ")[1] for line in output.splitlines()], output


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--gpus", default="nvidia")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    run = Run(options.folder.resolve(), options.seconds, options.gpus)
    count, run.uuids, listed = cards_of(options.gpus)
    known = {part.name: part for part in [*MOVES, *RANKS]}
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    strands = [([0, 1], [known[name] for name in TURNS.split()], cpus)]
    if count >= 4:
        strands = [([0, 1], MOVES, cpus[:half] or cpus), ([2, 3], RANKS, cpus[half:])]
    if options.list:
        for cards, parts, _ in strands:
            for part in parts:
                print(part.most, " ".join(part.command(cards, options.gpus, Path("OUT"), part.most)[2:]))
        return 0
    host = f"{listed}\n{os.uname().release}, Python {sys.version.split()[0]}, {len(cpus)} processors\n"
    (options.folder / "machine").write_text(host)
    run.tell(f"begins with {count} cards")
    playing = [
        Strand([part for part in parts if part.name in options.only or not options.only], cards, set(its), run)
        for cards, parts, its in strands
    ]
    signal.signal(signal.SIGTERM, run.stop)
    for strand in playing:
        strand.start()
    for strand in playing:
        strand.join()
    run.tell("all is over")
    return 0


if __name__ == "__main__":
    sys.exit(main())
