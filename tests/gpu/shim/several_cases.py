"""The cases of several.py, what is noted of one as it runs, and what is reported of it."""

import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.shim.matrix import LONGEST, Sample, at_rest


@dataclass(frozen=True)
class Case:
    name: str
    quota: float = 4.0  # GiB on each GPU; a part of the card if it crosses another
    gpus: tuple[int, ...] = (0, 1)
    beyond: tuple[str, ...] = ()  # what it is to say beyond its quota
    torch: bool = False
    env: dict[str, str] = field(default_factory=dict)
    after: str = ""  # begins once that one holds its first, and is suspended until that one ends

    @property
    def crosses(self) -> bool:
        return self.quota < 1


CASES = [
    Case(
        "both",
        beyond=("GPU 0: out of memory; GPU 1 goes on", "GPU 1: out of memory; GPU 0 goes on"),
    ),
    Case("chosen"),
    Case("second", gpus=(1,), beyond=("nothing on the other GPU",)),
    Case("DDP", quota=8, torch=True),
    Case("DDP NCCL_CUMEM_ENABLE=1", quota=8, torch=True, env={"NCCL_CUMEM_ENABLE": "1"}),
    Case("DDP NCCL_CUMEM_ENABLE=0", quota=8, torch=True, env={"NCCL_CUMEM_ENABLE": "0"}),
    Case("tree", quota=8, torch=True),
    Case("peer", torch=True),
    Case("crossing, first", quota=0.75),
    Case("crossing, then", quota=0.75, after="crossing, first"),
]


@dataclass(eq=False)
class Run:
    case: Case
    folder: Path
    words: list[str]
    container: str = ""
    state: str = "not started"
    was_suspended: bool = False
    over: float = 0.0  # when
    done: bool = False
    log: str = ""
    marks: list[dict[int, list[Sample]]] = field(default_factory=list)
    peak: dict[int, int] = field(default_factory=dict)
    left: int = 0  # bytes still charged after its end
    quota: int = 0
    _since: float = 0.0

    def said(self, what: str) -> list[str]:
        """What follows this word, for each whole line that begins with it."""
        path = self.folder / "said"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [line[len(what) :].strip() for line in lines if line.split(" ")[0] == what]

    def waits(self) -> bool:
        """Whether it holds at a mark."""
        reached = len(self.said("mark"))
        return reached > 0 and not (self.folder / f"go-{reached}").exists()

    def let_go_on(self) -> None:
        (self.folder / f"go-{len(self.said('mark'))}").touch()

    def sample(self, shown: dict[int, tuple[int, int, int]], still: float) -> bool:
        """Notes what is charged, overhead, and in NVML on each GPU; whether that is at rest and right, or late."""
        now = time.monotonic()
        if len(self.marks) < len(self.said("mark")):
            self.marks.append({gpu: [] for gpu in shown})
            self._since = now
        for gpu, figures in shown.items():
            self.marks[-1][gpu].append(Sample(now - self._since, *figures))
        # What is taken inside a lease is seen by the scheduler's measurement of each second only.
        late = now - self._since > LONGEST
        return late or all(samples[-1].right and at_rest(samples, still) for samples in self.marks[-1].values())

    def late(self) -> float:
        """Seconds after which all were right at each of the marks."""
        samples = [sample for mark in self.marks for samples in mark.values() for sample in samples]
        return max((sample.at for sample in samples if not sample.right), default=0.0)


def judge(run: Run, native: list[str] | None) -> dict[str, Any]:
    """One line of the table. `native`: the results without the shim."""
    ends = [{gpu: samples[-1] for gpu, samples in mark.items()} for mark in run.marks]
    gpus = ends[0] if ends else {}
    worst = {gpu: max((end[gpu] for end in ends), key=lambda sample: (sample.differ, sample.held)) for gpu in gpus}
    row = {
        "name": run.case.name,
        "state": run.state,
        "same results": bool(native) and run.said("result") == native and bool(run.said("end")),
        "results": run.said("result"),
        "beyond": run.said("beyond"),
        "suspended": run.was_suspended,
        "quota": run.quota,
        "peak": run.peak,
        "worst at rest": {gpu: asdict(sample) for gpu, sample in worst.items()},
        "seconds until within": run.late(),
        "left": run.left,
    }
    wrong = {
        "results": not row["same results"],
        "state": run.state != "exited",
        "beyond": run.said("beyond") != list(run.case.beyond),
        "peak above the quota": any(peak > run.quota for peak in run.peak.values()),
        "charged and NVML differ": not worst or not all(sample.right for sample in worst.values()),
        "still charged": run.left != 0,
        "never suspended": bool(run.case.after) and not run.was_suspended,
    }
    return row | {"wrong": [what for what, is_so in wrong.items() if is_so], "log": run.log}


def show(row: dict[str, Any]) -> None:
    figures = ""
    for gpu, sample in row["worst at rest"].items():
        charged, overhead, held = (sample[name] >> 20 for name in ("used", "overhead", "held"))
        figures += f"  GPU {gpu}: {charged:>6} ({overhead:>5}) {held:>6} {held - charged:>5}"
    results = "same" if row["same results"] else "WRONG"
    figures += f"{row['seconds until within']:>6.1f} s{row['left'] >> 20:>6}"
    print(f"{row['name']:24}{results:>6}{figures}  {', '.join(row['wrong']) or 'right'}")
    for line in row["beyond"]:
        print(f"{'':24}beyond its quota: {line}")
    if row["wrong"]:
        print(f"--- {row['name']}: {row['state']}; results {row['results']}\n{row['log']}")
    sys.stdout.flush()
