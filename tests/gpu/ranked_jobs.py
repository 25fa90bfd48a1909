"""The programs of ranked.py: trainings of two ranks on two GPUs, and what each has done so far."""

import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.gpu import host_image
from tests.gpu.shim import NO_MULTICAST
from tests.support.appliance import ROOT, Appliance, until

GIB = 1 << 30
LONG = 40.0
BATCH = {"fsdp": 16384}
ALIKE, PINNED = ("one", "small", "native-ddp", "native-small"), {"CORES": "4"}  # compared in time
ENVIRONMENT = NO_MULTICAST | {
    "PYTHONPATH": host_image.PATHS, "USER": "root", "HOME": "/tmp", "OMP_NUM_THREADS": "2",
    "CPUS": host_image.CPUS, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
}  # fmt: skip
PAIRS = ["fsdp", "two", "compiled", "pipeline", "jax", "graphs"]
PARTS = ["native", "limit", "ddp", "three", *PAIRS[:5], "random", "graphs"]
ALSO = ["small", "hang", "abort", "dies", *(f"moved-{kind}" for kind in ("ddp", *PAIRS))]
TAKES = {  # seconds
    "native": 60, "limit": 30, "ddp": 40, "three": 50, "hang": 50, "abort": 40, "dies": 50, "random": 60,
} | dict.fromkeys(PAIRS, 40) | dict.fromkeys(ALSO[4:], 30)  # fmt: skip
NEEDS = {
    "native": ["one", "two", "third"], "limit": ["one"], "ddp": ["one", "two"], "hang": ["one", "two"],
    "three": ["one", "two", "third"], "abort": ["two", "abort"], "dies": ["one", "two"], "random": ["a", "b", "moved"],
    "moved-ddp": ["one", "ddp-moved"],
} | {kind: [f"{kind}-300", f"{kind}-100"] for kind in PAIRS} | {
    f"moved-{kind}": [f"{kind}-300", f"{kind}-moved"] for kind in PAIRS
}  # fmt: skip
Made = dict[str, tuple[str, dict[str, Any]]]
MADE: Made = {
    "one": ("ddp", {"compute_weight": 300}),
    "two": ("ddp", {"compute_weight": 100}),
    "small": ("small", {}),
    "third": ("gemm", {"gpus": 1, "compute_weight": 100}),
    "abort": ("abort", {"compute_weight": 100}),
    "a": ("ddp", {}),
    "b": ("ddp", {}),
    "moved": ("ddp", {"movable": True}),
}
MADE |= {f"{kind}-{weight}": (kind, {"compute_weight": weight}) for kind in PAIRS for weight in (300, 100)}
MADE |= {f"{kind}-moved": (kind, {"movable": True}) for kind in ("ddp", *PAIRS)}


class Job:
    """A program; `sim`: stands for it on the simulated card."""

    def __init__(self, folder: Path, kind: str, name: str, sim: bool) -> None:
        self.folder, self.kind, self.name = folder, kind, name
        kind = kind if not sim else {"gemm": "sim-alone", "abort": "sim-abort"}.get(kind, "sim")
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
    def __init__(
        self, appliance: Appliance, within: host_image.Docker | None, folder: Path, kind: str, name: str, sim: bool,
        **fields: Any,
    ) -> None:  # fmt: skip
        super().__init__(folder, kind, name, sim)
        self.appliance = appliance
        if within:
            self.words[0] = host_image.PYTHON
            volumes = [*within.volumes, f"{folder}:{folder}"]
            fields |= {"image": within.image, "volumes": volumes, "shm_size": GIB}
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
