"""The real card for the programs here: its UUIDs, what NVML says of a process, and a scheduler's end that grants."""

import os
import subprocess
import tempfile
import uuid
from collections import Counter
from pathlib import Path

import pynvml

import shim.sim
from tests.support.grants import BUILD, Grants

HERE = Path(__file__).parent
CONTEXT = 543162368  # measured: H200, driver 580
GIB = 1 << 30
MIB = 1 << 20


def query(fields: str, of: str = "gpu") -> list[list[str]]:
    words = ["nvidia-smi", f"--query-{of}={fields}", "--format=csv,noheader,nounits"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]


def about() -> dict[str, str]:
    ((name, driver, total),) = query("name,driver_version,memory.total")[:1]
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return {"card": name, "driver": driver, "MiB": total, "nvcc": nvcc.split("release ")[1].split(",")[0]}


def free() -> int:
    """Bytes of the first card that nobody holds."""
    ((mib,),) = query("memory.free")[:1]
    return int(mib) * MIB


class Nvml:
    """Who holds how much, by NVML: the driver's, or that of the simulated card with this state file."""

    def __init__(self, simulation: Path | None = None) -> None:
        if simulation:
            os.environ["GPUSHARE_SIM"] = str(simulation)
            pynvml.nvmlLib = shim.sim.load_nvml(BUILD)
        pynvml.nvmlInit()
        self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]

    def held(self) -> dict[int, int]:
        """Host pid → bytes on all GPUs."""
        shown: Counter[int] = Counter()
        for gpu in self._gpus:
            for each in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
                shown[each.pid] += each.usedGpuMemory or 0
        return shown


def compile_program(name: str) -> Path:
    out = BUILD / "gpu" / name
    out.parent.mkdir(parents=True, exist_ok=True)
    source = HERE / f"{name}.cu"
    if not out.exists() or out.stat().st_mtime < source.stat().st_mtime:
        words = ["nvcc", "-O2", "-std=c++17", "-arch=native", "-o", str(out), str(source), "-lcuda", "-ldl"]
        subprocess.run(words, check=True)
    return out


def scheduler(quota: int, extra: int) -> Grants:
    """A scheduler's end with one container of this quota; `extra` headroom comes with each grant. Close it."""
    uuids = [uuid.UUID(cell.removeprefix("GPU-")).bytes for (cell,) in query("uuid")]
    folder = Path(tempfile.mkdtemp(prefix="gpushare-"))
    return Grants(folder, uuids, quota, extra=extra, context=CONTEXT)
