"""Real programs on the appliance, each under a quota that it fits and one that it does not.

    python -m tests.gpu.shim.matrix [--engine process|docker …] [--gpus SPEC] [--out FOLDER] [NAME …]

First each runs without the shim, which says what the right results are; then with each engine all of them at once. At
each of its marks a program holds its memory until what the REST API says of its container has come to rest, and that is
compared with NVML's figure for its processes. Prints a table and writes matrix.json (both as far as it came);
exits 1 if a program's line is wrong.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.gpu import host_image
from tests.gpu.host_image import PYTHON
from tests.gpu.shim import card
from tests.gpu.shim.frameworks import FRAMEWORKS
from tests.support.appliance import Appliance

FITS, TIGHT = 8 * card.GIB, 4 * card.GIB
STATIC = "static cudart program"
LIMIT = 85  # seconds for all programs of one engine, and for those without the shim
STILL = 4.5  # seconds without a change: more than the three measurements after which the scheduler charges a difference
LONGEST = 15.0  # seconds at one mark
RUNNING = ("created", "running", "suspended", "paused")


@dataclass(frozen=True)
class Sample:
    """Bytes at a time (seconds since the mark): charged, the part of it that is overhead, what NVML shows."""

    at: float
    used: int
    overhead: int
    held: int

    @property
    def differ(self) -> int:
        return abs(self.held - self.used)

    @property
    def right(self) -> bool:
        return self.differ <= max(self.held * 0.02, 32 * card.MIB)


@dataclass
class Run:
    name: str
    kind: str  # plain, fits or tight
    folder: Path
    container: str = ""
    over: bool = False
    state: str = ""
    left: int = 0  # charged after its end
    log: str = ""
    marks: list[list[Sample]] = field(default_factory=list)
    _since: float = 0.0

    def words(self) -> list[str]:
        beyond = ["beyond"] if self.kind == "tight" else []
        work = self.folder.parent
        if self.name == STATIC:
            return [str(work / "static"), str(self.folder), "1024", *beyond]
        return [PYTHON, str(work / "frameworks.py"), str(self.folder), self.name, *beyond]

    def said(self, what: str) -> list[str]:
        """What follows this word, for each whole line that begins with it."""
        path = self.folder / "said"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [line[len(what) :].strip() for line in lines if line.split(" ")[0] == what]

    def look(self, now: float, used: int, overhead: int, held: int, still: float = 0) -> None:
        """Takes a sample if it holds at a mark, and lets it go on once its charge is at rest."""
        reached = len(self.said("mark"))
        if (self.folder / f"go-{reached}").exists() or not reached:
            return
        if len(self.marks) < reached:
            self.marks.append([])
            self._since = now
        samples = self.marks[-1]
        samples.append(Sample(now - self._since, used, overhead, held))
        if self.kind == "plain" or at_rest(samples, still):
            (self.folder / f"go-{reached}").touch()


def at_rest(samples: list[Sample], still: float) -> bool:
    last = samples[-1]
    recent = [sample for sample in samples if sample.at >= last.at - still]
    return last.at >= LONGEST or (last.at >= still and all(sample.used == last.used for sample in recent))


class Workplace:
    """The folder that programs and whoever compares share: below it one of each run."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.path = Path(tempfile.mkdtemp(prefix="gpushare-matrix-"))
        (self.path / "home").mkdir()
        shutil.copy(card.HERE / "frameworks.py", self.path)
        if STATIC in names:
            shutil.copy(card.compile_program("static"), self.path)

    def runs(self, kinds: tuple[str, ...], of: str) -> list[Run]:
        found = []
        for kind in kinds:
            for name in self.names:
                folder = self.path / f"{of}-{kind}-{name.replace(' ', '-')}"
                folder.mkdir()
                found.append(Run(name, kind, folder))
        return found

    def environment(self) -> dict[str, str]:
        caches = {"HOME": "home", "TRITON_CACHE_DIR": "caches/triton", "CUPY_CACHE_DIR": "caches/cupy"}
        toolkit = Path("/usr/local/cuda")
        return {
            "PATH": os.environ["PATH"],
            "USER": "gpushare",  # PyTorch asks for a name, and an image need not have anybody's
            **{name: str(self.path / folder) for name, folder in caches.items()},
            **({"CUDA_PATH": str(toolkit.resolve())} if toolkit.exists() else {}),
        }


def play_plain(work: Workplace) -> list[Run]:
    """Without the shim."""
    runs = work.runs(("plain",), "native")
    env = work.environment() | {
        name: os.environ[name] for name in ("LD_LIBRARY_PATH", "GPUSHARE_SIM") if name in os.environ
    }
    started = {}
    for run in runs:
        with (run.folder / "log").open("wb") as log:
            started[run.name] = subprocess.Popen(
                run.words(), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    deadline = time.monotonic() + LIMIT
    try:
        while time.monotonic() < deadline and not all(run.over for run in runs):
            for run in runs:
                run.look(time.monotonic(), 0, 0, 0)
                run.over = started[run.name].poll() is not None
            time.sleep(0.1)
    finally:
        for process in started.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for run in runs:
        run.state, run.log = f"ended {started[run.name].returncode}", (run.folder / "log").read_text()[-1500:]
    return runs


class Engine:
    """The appliance with one engine, and all programs on it at once."""

    def __init__(self, name: str, gpus: str, work: Workplace, still: float) -> None:
        self.name, self._work, self._still = name, work, still
        self._smi = ""  # the container that runs it
        self.runs = work.runs(("fits", "tight"), name)
        if name == "docker":
            host_image.build()
        roots = " ".join([*host_image.ROOTS, str(work.path)])
        home = work.path / f"home-of-{name}"
        # A process can look at one simulated card only: the engines share it, as they do a real one.
        (work.path / "card").mkdir(exist_ok=True)
        home.mkdir()
        (home / "card").symlink_to(work.path / "card")
        self._site = Appliance(home, gpus, GPUSHARE_ENGINE=name, GPUSHARE_VOLUME_ROOTS=roots, GPUSHARE_POLICY="fair")
        self._nvml = card.Nvml(next((home / "card").glob("*"), None) if gpus.startswith("sim") else None)

    def play(self) -> None:
        deadline = time.monotonic() + LIMIT
        for run in self.runs:
            run.container = self._launch(run.words(), run.folder.name, FITS if run.kind == "fits" else TIGHT)
        self._look_with_nvidia_smi()
        while time.monotonic() < deadline and not all(run.over for run in self.runs):
            self._look()
            time.sleep(0.2)
        self._look()
        for run in self.runs:
            run.log = "" if run.state == "exited" else self._log(run.container)
        if self._smi:
            print(f"\nnvidia-smi in a container of {TIGHT >> 20} MiB: {self._log(self._smi).strip()}", flush=True)

    def _launch(self, words: list[str], name: str, quota: int) -> str:
        docker = {"image": host_image.IMAGE, "volumes": [*host_image.VOLUMES, f"{self._work.path}:{self._work.path}"]}
        more = docker if self.name == "docker" else {}
        return str(self._site.launch(*words, name=name, gpu_memory=quota, env=self._work.environment(), **more)["id"])

    def _look_with_nvidia_smi(self) -> None:
        """What a person sees in a container: the quota as the card."""
        if tool := shutil.which("nvidia-smi"):
            words = [tool, "--query-gpu=name,memory.total,memory.used,memory.free", "--format=csv,noheader"]
            self._smi = self._launch(words, "nvidia-smi", TIGHT)

    def _look(self) -> None:
        rows = {each["id"]: each for each in self._site.api("GET", "containers/?page_size=1000")["results"]}
        held = self._nvml.held()
        owners = {pid: _words_of(pid) for pid in held}
        for run in self.runs:
            if run.over:
                continue
            claim = rows[run.container]["gpus"][0]
            mine = sum(size for pid, size in held.items() if f"{run.folder} " in owners[pid])
            run.look(time.monotonic(), claim["used"], claim["overhead"], mine, self._still)
            run.state = rows[run.container]["state"]
            run.over = run.state not in RUNNING

    def left(self) -> int:
        """Bytes still charged on the card once it has had 5 seconds to come down; each run's own are in `run.left`."""
        deadline = time.monotonic() + 5
        while True:
            rows = {each["id"]: each for each in self._site.api("GET", "containers/?page_size=1000")["results"]}
            for run in self.runs:
                run.left = rows[run.container]["gpus"][0]["used"]
            charged = sum(gpu["charged"] for gpu in self._site.api("GET", "gpus/")["results"])
            if not charged or time.monotonic() > deadline:
                return int(charged)
            time.sleep(0.2)

    def _log(self, container: str) -> str:
        url = f"{self._site.url}/api/v1/containers/{container}/logs/"
        return httpx.get(url, headers={"Authorization": f"Token {self._site.token}"}, timeout=10).text[-1500:]

    def close(self) -> None:
        self._site.close()


def _words_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""  # it has ended


def judge(run: Run, native: list[str]) -> dict[str, Any]:
    """One line of the table. `native`: the results without the shim."""
    beyond = " ".join(run.said("beyond"))
    wanted = native * 2 if run.kind == "tight" else native
    goes_right = bool(native) and run.said("result") == wanted and bool(run.said("end")) and run.state == "exited"
    worst = max(
        (samples for samples in run.marks), key=lambda samples: abs(samples[-1].held - samples[-1].used), default=[]
    )
    first, last = (worst[0], worst[-1]) if worst else (Sample(0, 0, 0, 0), Sample(0, 0, 0, 0))
    right_from = next((s.at for i, s in enumerate(worst) if all(later.right for later in worst[i:])), None)
    return {
        "name": run.name,
        "quota": run.kind,
        "state": run.state,
        "right": goes_right and run.left == 0 and (run.kind == "fits" or beyond != ""),
        "same results": goes_right,
        "beyond": beyond,
        "within": bool(run.marks) and all(s[-1].right and s[-1].held > 0 for s in run.marks),
        "at the mark": asdict(first),
        "at rest": asdict(last),
        "seconds until within": right_from,
        "left": run.left,
        "log": run.log,
    }


def show(engine: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{engine}: MiB charged (of it overhead) and in NVML, as the mark is reached and at rest")
    print(f"{'':34}{'results':>8}{'charged':>9}{'NVML':>8}{'charged':>11}{'overhead':>9}{'NVML':>8}{'differ':>8}{'%':>7}"
          f"{'within':>8}{'after':>7}{'left':>5}  beyond its quota")  # fmt: skip
    for row in rows:
        first, last = row["at the mark"], row["at rest"]
        differ = (last["held"] - last["used"]) / card.MIB
        percent = 100 * (last["held"] - last["used"]) / last["held"] if last["held"] else 0.0
        after = "never" if row["seconds until within"] is None else f"{row['seconds until within']:.1f} s"
        print(
            f"{row['name'] + ', ' + row['quota']:34}{'same' if row['same results'] else 'WRONG':>8}"
            f"{first['used'] >> 20:>9}{first['held'] >> 20:>8}{last['used'] >> 20:>11}{last['overhead'] >> 20:>9}"
            f"{last['held'] >> 20:>8}{differ:>8.1f}{percent:>7.2f}{'yes' if row['within'] else 'NO':>8}{after:>7}"
            f"{row['left'] >> 20:>5}  {row['beyond'] or ('-' if row['quota'] == 'fits' else 'NONE')}",
            flush=True,
        )
    for row in rows:
        if row["log"]:
            print(f"--- {row['name']}, {row['quota']}: {row['state']}\n{row['log']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[STATIC, *FRAMEWORKS])
    parser.add_argument("--engine", action="append", choices=("process", "docker"))
    parser.add_argument("--gpus", default="nvidia")
    parser.add_argument("--still", type=float, default=STILL, help="seconds without a change that count as rest")
    parser.add_argument("--out", type=Path, default=Path())
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    simulated = arguments.gpus.startswith("sim")
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        **({"card": arguments.gpus} if simulated else card.about()),
    }
    print(json.dumps(about), flush=True)
    work = Workplace(arguments.names)
    begin = time.monotonic()
    plain = play_plain(work)
    native = {run.name: run.said("result") for run in plain if run.said("end")}
    print(f"without the shim: {len(native)} of {len(plain)} to their end, {time.monotonic() - begin:.0f} s", flush=True)
    for run in plain:
        if run.name not in native:
            print(f"--- {run.name}: {run.state}\n{run.log}", flush=True)
    kept: dict[str, Any] = {**about, "native": native, "engines": {}}
    good = len(native) == len(plain)
    for name in arguments.engine or ["process", "docker"]:
        try:
            good = one_engine(Engine(name, arguments.gpus, work, arguments.still), native, kept, arguments.out) and good
        except Exception:  # the other engine's table is worth having all the same
            traceback.print_exc()
            good = False
    return 0 if good else 1


def one_engine(engine: Engine, native: dict[str, list[str]], kept: dict[str, Any], out: Path) -> bool:
    """Whether all was right. What came about before an end by force is shown and kept."""
    begin = time.monotonic()
    left = -1
    try:
        engine.play()
        left = engine.left()
    finally:
        rows = [judge(run, native.get(run.name, [])) for run in engine.runs]
        show(engine.name, rows)
        seconds = time.monotonic() - begin
        print(f"{engine.name}: charged on the card afterwards: {left} B; {seconds:.0f} s", flush=True)
        kept["engines"][engine.name] = {"left": left, "seconds": seconds, "rows": rows}
        (out / "matrix.json").write_text(json.dumps(kept, indent=1))
        engine.close()
    return left == 0 and all(row["right"] and row["within"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
