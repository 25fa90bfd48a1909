"""The real card for the programs here: its UUIDs, what NVML says of a process, and a scheduler's end that grants."""

from __future__ import annotations

import subprocess
import tempfile
import uuid
from pathlib import Path

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


def held_by(pid: int) -> int:
    """Bytes that NVML shows for a process; 0 if it does not show it."""
    return sum(int(size) * MIB for found, size in query("pid,used_memory", "compute-apps") if int(found) == pid)


def compile_program(name: str) -> Path:
    out = BUILD / "gpu" / name
    out.parent.mkdir(parents=True, exist_ok=True)
    source = HERE / f"{name}.cu"
    if not out.exists() or out.stat().st_mtime < source.stat().st_mtime:
        words = ["nvcc", "-O2", "-std=c++17", "-arch=native", "-o", str(out), str(source), "-lcuda", "-ldl"]
        subprocess.run(words, check=True)
    return out


def scheduler(quota: int, *, all_at_once: bool = True) -> Grants:
    """A scheduler's end with one container of this quota; close it when done."""
    uuids = [uuid.UUID(cell.removeprefix("GPU-")).bytes for (cell,) in query("uuid")]
    folder = Path(tempfile.mkdtemp(prefix="gpushare-"))
    return Grants(folder, uuids, quota, extra=quota if all_at_once else 0, context=CONTEXT)
