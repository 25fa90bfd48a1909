"""Programs on two GPUs of one host, in containers of the appliance.

    python -m tests.gpu.shim.several [--engine process|docker …] [--gpus SPEC] [--out FOLDER] [NAME …]

First each runs without the shim, which says what the right results are; then with each engine all of them at once, and
after them two containers that want the GPUs the other way round. At its marks a program holds its memory until what
the REST API says of its container has come to rest, and that is compared with NVML's figure for its processes, GPU by
GPU. A line of the table is printed, and several.json written, as each case ends; exits 1 if anything is wrong. Nothing
is waited for longer than its limit, and all of it takes less than three minutes.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

import scheduler.gpus
from tests.gpu import host_image
from tests.gpu.shim import NO_MULTICAST, card
from tests.gpu.shim.matrix import LONGEST, RUNNING, STILL
from tests.gpu.shim.several_cases import CASES, Case, Run, judge, show
from tests.support.appliance import ROOT, Appliance
from tests.support.grants import BUILD

TOTAL = 160.0  # seconds for everything but the ending of what still runs
NATIVE, TOGETHER, CROSSING = 55.0, 60.0, 35.0  # seconds for the cases of one round
COMES_DOWN = 5.0  # seconds in which the charge of an ended container has to go
GPUS = range(2)


class Workplace:
    """The folder that programs and whoever compares share, and the cards."""

    def __init__(self, gpus: str, deadline: float) -> None:
        self.gpus, self.deadline = gpus, deadline
        self.path = Path(tempfile.mkdtemp(prefix="gpushare-several-"))
        self.path.chmod(0o755)
        (self.path / "home").mkdir()
        choice = scheduler.gpus.parse(gpus)
        self.simulation = (
            scheduler.gpus.simulated_card(choice.simulation, self.path, BUILD) if choice.simulation else None
        )
        self.nvml = card.Nvml(self.simulation)
        sizes = self.nvml.sizes()
        self.uuids = list(sizes)[: len(GPUS)]
        if len(self.uuids) < len(GPUS):
            sys.exit(f"This needs two GPUs; there is {len(self.uuids)}.")
        self.size = min(*sizes.values(), choice.cap or sys.maxsize)

    def runs(self, cases: list[Case], of: str) -> list[Run]:
        made = []
        for case in cases:
            folder = self.path / f"{of}-{re.sub(r'[ =]', '-', case.name.replace(',', ''))}"
            folder.mkdir(mode=0o777)
            words = [host_image.PYTHON, "-m", "tests.gpu.shim.several_programs", str(folder), case.name, str(self.size)]
            words += self.uuids + (["beyond"] if case.beyond and of != "native" else [])
            quota = int(case.quota * (self.size if case.crosses else card.GIB))
            made.append(Run(case, folder, words, quota=quota))
        return made

    def environment(self, run: Run) -> dict[str, str]:
        passed = ("NCCL_", "TORCH_", "NVSHMEM_")
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.path / "home"),
            "USER": "gpushare",  # PyTorch asks for a name, and an image need not have anybody's
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "2",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS is not deterministic, and PyTorch refuses
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_DEBUG": "WARN",
            **{name: value for name, value in os.environ.items() if name.startswith(passed)},
            **NO_MULTICAST,
            **run.case.env,
            "CASE": str(run.folder),  # by which its processes are known, whoever started them
        }

    def held(self, run: Run) -> dict[int, int]:
        """What NVML shows of its processes: GPU → bytes."""
        shown = self.nvml.held_by_gpu()
        return {
            gpu: sum(size for pid, size in shown[uuid].items() if _case_of(pid) == str(run.folder))
            for gpu, uuid in enumerate(self.uuids)
        }


def _case_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return ""  # it has ended
    return next((word.removeprefix("CASE=") for word in words if word.startswith("CASE=")), "")


def may_begin(run: Run, runs: list[Run]) -> bool:
    return not run.case.after or any(each.case.name == run.case.after and (each.marks or each.over) for each in runs)


def play_plain(work: Workplace, cases: list[Case]) -> list[Run]:
    """Without the shim."""
    runs, started = work.runs(cases, "native"), {}
    limit = min(time.monotonic() + NATIVE, work.deadline)
    driver = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    if work.simulation:
        driver = {"GPUSHARE_SIM": str(work.simulation), "LD_LIBRARY_PATH": str(BUILD / "sim")}
    try:
        for run in runs:
            visible = {"CUDA_VISIBLE_DEVICES": ",".join(work.uuids[gpu] for gpu in run.case.gpus)}
            env = work.environment(run) | driver | visible
            with (run.folder / "log").open("wb") as log:
                started[run.case.name] = subprocess.Popen(
                    run.words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        while time.monotonic() < limit and not all(run.over for run in runs):
            for run in runs:
                if run.waits():
                    run.let_go_on()
                if not run.over and started[run.case.name].poll() is not None:
                    run.over = time.monotonic()
            time.sleep(0.1)
    finally:
        for run in runs:
            if process := started.get(run.case.name):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                run.state, run.log = f"ended {process.wait()}", (run.folder / "log").read_text()[-3000:]
    return runs


class Engine:
    """The appliance with one engine."""

    def __init__(self, name: str, work: Workplace, still: float) -> None:
        self.name, self._work, self._still = name, work, still
        if name == "docker":
            host_image.build()
        home = work.path / f"home-of-{name}"
        home.mkdir()
        if work.simulation:
            # A process can look at one simulated card only: the engines share it, as they do a real one.
            (home / "card").symlink_to(work.simulation.parent)
        roots = " ".join([*host_image.ROOTS, str(work.path), str(ROOT)])
        self._site = Appliance(home, work.gpus, GPUSHARE_ENGINE=name, GPUSHARE_VOLUME_ROOTS=roots)

    def play(self, runs: list[Run], limit: float, tell: Callable[[Run], None]) -> None:
        """All of them at once. `tell` is called for each when it has ended and its charge is gone, or should be."""
        deadline = min(time.monotonic() + limit, self._work.deadline)
        while not all(run.done for run in runs):
            for run in runs:
                if not run.container and not run.over and may_begin(run, runs):
                    self._launch(run)
            rows = {each["id"]: each for each in self._site.api("GET", "containers/?page_size=1000")["results"]}
            late = time.monotonic() > deadline
            for run in runs:
                if run.container:
                    self._look(run, rows[run.container], runs)
                if late and not run.over:
                    run.over, run.state = time.monotonic(), f"{run.state} at its limit"
                    self._kill(run)
                if run.over and not run.done and (not run.left or time.monotonic() - run.over > COMES_DOWN):
                    run.done = True
                    run.log = self._log(run) if run.container else run.log
                    tell(run)
            time.sleep(0.1)

    def _launch(self, run: Run) -> None:
        root, work = f"{ROOT}:{ROOT}:ro", f"{self._work.path}:{self._work.path}"
        docker = {"image": host_image.IMAGE, "volumes": [*host_image.VOLUMES, root, work]}
        uuids = [self._work.uuids[gpu] for gpu in run.case.gpus]
        more = docker if self.name == "docker" else {}
        try:
            made = self._site.launch(
                *run.words, name=run.folder.name, gpu_memory=run.quota, gpus=uuids,
                env=self._work.environment(run), **more,
            )  # fmt: skip
            run.container = str(made["id"])
        except httpx.HTTPStatusError as error:
            run.over, run.state, run.log = time.monotonic(), "refused", error.response.text

    def _look(self, run: Run, rows: dict[str, Any], runs: list[Run]) -> None:
        charged = {self._work.uuids.index(gpu["uuid"]): gpu for gpu in rows["gpus"]}
        run.left = sum(gpu["used"] for gpu in charged.values())
        run.peak = {gpu: each["peak"] for gpu, each in charged.items()}
        if run.over:
            return
        run.state = rows["state"]
        run.was_suspended = run.was_suspended or run.state == "suspended"
        if run.state not in RUNNING:
            run.over = time.monotonic()
        elif run.waits():
            none = {"used": 0, "overhead": 0}
            shown = {
                gpu: (charged.get(gpu, none)["used"], charged.get(gpu, none)["overhead"], held)
                for gpu, held in self._work.held(run).items()
            }
            others = [each for each in runs if each.case.after == run.case.name]
            if run.sample(shown, self._still) and all(self._is_suspended(run, other) for other in others):
                run.let_go_on()

    @staticmethod
    def _is_suspended(run: Run, other: Run) -> bool:
        """Whether the other waits, as it is to; or has had the time for it."""
        late = run.marks[-1][0][-1].at > LONGEST
        return other.was_suspended or bool(other.over) or late

    def _kill(self, run: Run) -> None:
        try:
            self._site.api("POST", f"containers/{run.container}/kill/", {})
        except httpx.HTTPError as error:
            run.log = str(error)

    def charged(self) -> int:
        """Bytes on all GPUs."""
        return sum(int(gpu["charged"]) for gpu in self._site.api("GET", "gpus/")["results"])

    def _log(self, run: Run) -> str:
        url = f"{self._site.url}/api/v1/containers/{run.container}/logs/"
        try:
            return httpx.get(url, headers={"Authorization": f"Token {self._site.token}"}, timeout=10).text[-3000:]
        except httpx.HTTPError as error:
            return f"no log: {error}"

    def close(self) -> None:
        self._site.close()


def one_engine(name: str, work: Workplace, cases: list[Case], native: dict[str, list[str]], still: float,
               report: dict[str, Any], out: Path) -> bool:  # fmt: skip
    """Whether all was right. What came about before an end by force is shown and kept."""
    begin = time.monotonic()
    runs = work.runs(cases, name)
    rows: list[dict[str, Any]] = []
    kept = report["engines"][name] = {"rows": rows, "left": -1}

    def tell(run: Run) -> None:
        rows.append(judge(run, native.get(run.case.name)))
        show(rows[-1])
        (out / "several.json").write_text(json.dumps(report, indent=1))

    print(f"\n{name}: MiB charged (of it overhead), in NVML, the difference, where it is worst at rest; the seconds")
    print("after which they differed no more; MiB left at its end", flush=True)
    engine = Engine(name, work, still)
    try:
        engine.play([run for run in runs if not run.case.crosses], TOGETHER, tell)
        engine.play([run for run in runs if run.case.crosses], CROSSING, tell)
        kept["left"] = engine.charged()
    finally:
        for run in runs:
            if not run.done:
                tell(run)
        seconds = time.monotonic() - begin
        print(f"{name}: charged on the cards afterwards: {kept['left']} B; {seconds:.0f} s", flush=True)
        (out / "several.json").write_text(json.dumps(report, indent=1))
        engine.close()
    return kept["left"] == 0 and not any(row["wrong"] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help=", ".join(case.name for case in CASES))
    parser.add_argument("--engine", action="append", choices=("process", "docker"))
    parser.add_argument("--gpus", default="nvidia:cap=64GiB")
    parser.add_argument("--still", type=float, default=STILL, help="seconds without a change that count as rest")
    parser.add_argument("--out", type=Path, default=Path())
    arguments = parser.parse_args()
    for ending in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(ending, lambda *_: sys.exit(1))  # so that what was started is ended
    signal.alarm(int(TOTAL) + 5)
    simulated = arguments.gpus.startswith("sim")
    names = arguments.names or [case.name for case in CASES if not (simulated and case.torch)]
    cases = [case for case in CASES if case.name in names]
    work = Workplace(arguments.gpus, time.monotonic() + TOTAL)
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        **({"card": arguments.gpus} if simulated else card.about()),
        "GPUs": len(work.uuids),
    }
    print(json.dumps(about), flush=True)
    begin = time.monotonic()
    plain = play_plain(work, cases)
    native = {run.case.name: run.said("result") for run in plain if run.said("end")}
    print(f"without the shim: {len(native)} of {len(plain)} to their end, {time.monotonic() - begin:.0f} s", flush=True)
    for run in plain:
        if run.case.name not in native:
            print(f"--- {run.case.name}: {run.state}\n{run.log}", flush=True)
    report: dict[str, Any] = {**about, "native": native, "engines": {}}
    good = len(native) == len(plain)
    try:
        for name in arguments.engine or ["process"]:
            try:
                good = one_engine(name, work, cases, native, arguments.still, report, arguments.out) and good
            except Exception:  # the other engine's table is worth having all the same
                traceback.print_exc()
                good = False
    finally:
        shutil.rmtree(work.path, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
