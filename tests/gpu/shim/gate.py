"""The gate on two real GPUs: `python -m tests.gpu.shim.gate --out FOLDER [NAME …]`, two minutes and a half.

Each program of gate_programs.py runs without the shim first, then under it. Meanwhile it is stopped, locked and let go
again and again; tests/support/gates.py is the scheduler. What comes of its steps must be the same. It tells what each
rank has begun, and what an all-reduce costs; "costs" as the only name: just that.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shim.binding.gate import Gate
from tests.gpu.shim import NO_MULTICAST
from tests.support.gates import let_go, stop
from tests.support.grants import Grants

NAMES = ("ddp", "fsdp", "two", "pipeline", "graphs", "jax", "cupy", "compiled")
TRIED, SECONDS = 30, 4.0  # steps by which it is found out how many take so long
STOPS = 16
GIB = 1 << 30
cuda: Any = None


def say(*words: object) -> None:
    print(*words, flush=True)


class Pair:
    """The processes of one program."""

    def __init__(self, name: str, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.folder = tempfile.mkdtemp(prefix=f"gate-{name}-")
        whole = {**os.environ, **NO_MULTICAST, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **(env or {})}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.gpu.shim.gate_programs", name],
                env=whole | {"RANK": str(rank), "MEETING": self.folder},
                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=open(f"{self.folder}/{rank}.err", "w"),  # noqa: SIM115
            )
            for rank in range(1 if name == "jax" else 2)
        ]  # fmt: skip

    def line(self) -> list[list[str]]:
        lines = [process.stdout.readline().split() for process in self.processes]  # type: ignore[union-attr]
        if not all(lines):
            errors = [Path(f"{self.folder}/{rank}.err").read_text()[-1500:] for rank in range(len(self.processes))]
            raise RuntimeError(f"{self.name} ended: {errors}")
        return lines

    def begin(self, steps: int) -> None:
        for process in self.processes:
            process.stdin.write(f"{steps}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]

    def run(self, steps: int) -> tuple[float, list[str]]:
        """Seconds, and what came of it on each rank."""
        self.begin(steps)
        lines = self.line()
        return max(float(line[0]) for line in lines), [line[1] for line in lines]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def lock(pid: int, timeout_ms: int) -> int:
    return int(cuda.cuCheckpointProcessLock(pid, (ctypes.c_uint32 * 16)(timeout_ms)))


def unlock(pids: Sequence[int]) -> None:
    for pid in pids:
        state = ctypes.c_int()
        cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state))
        if state.value == 1:
            assert cuda.cuCheckpointProcessUnlock(pid, None) == 0


def lock_all(pool: ThreadPoolExecutor, pids: Sequence[int], timeout_ms: int) -> bool:
    return all(code == 0 for code in pool.map(lambda pid: lock(pid, timeout_ms), pids))


def stops(pids: Sequence[int], gates: Sequence[Gate]) -> dict[str, Any]:
    """Stops with the gate, and without one as often: what became of them."""
    agreed: list[float] = []
    locked: list[float] = []
    bare = whole = 0
    with ThreadPoolExecutor(2) as pool:
        for number in range(STOPS):
            begin = time.monotonic()
            if stop(gates, 2.0):
                cut = time.monotonic()
                if lock_all(pool, pids, 2000):
                    whole += 1
                    agreed.append(cut - begin)
                    locked.append(time.monotonic() - cut)
            let_go(gates)
            time.sleep(0.02)
            unlock(pids)
            time.sleep(0.03)
            if number % 2:
                bare += lock_all(pool, pids, 100)
                unlock(pids)
                time.sleep(0.03)
    ms = lambda values: [round(1000 * f(values), 1) for f in (statistics.median, max)] if values else None  # noqa: E731
    return {
        "stopped": f"{whole} of {STOPS}", "agreed_ms": ms(agreed), "locked_ms": ms(locked),
        "without_the_gate": f"{bare} of {STOPS // 2}",
    }  # fmt: skip


def counted(gates: Sequence[Gate]) -> dict[str, Any]:
    channels: dict[str, list[int]] = {}
    for gate in gates:
        for entry in gate.entries():
            name = f"{entry.communicator & 0xFFFF:04x} of {entry.ranks}" + (
                "" if entry.channel[1] < 0 else f" {entry.channel[1]}→{entry.channel[2]}"
            )
            channels.setdefault(name, []).append(entry.given)
    unseen = [str(gate.unseen) for gate in gates if gate.unseen]
    same = all(len(set(each)) == 1 and len(each) == 2 for each in channels.values())
    return {"counts": channels, "equal": same, "unseen": unseen, "passed": sum(gate.passed for gate in gates)}


def gates_of(server: Grants, pair: Pair) -> list[Gate]:
    pids = [process.pid for process in pair.processes]
    return [peer.page.gate for pid in pids for peer in server.peers if peer.pid == pid]


def under_the_gate(server: Grants, names: Sequence[str], alone: dict[str, tuple[int, list[str]]]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    pairs = {name: Pair(name, server.env()) for name in names}
    for name, pair in pairs.items():
        try:
            pair.line()
            gates, pids = gates_of(server, pair), [process.pid for process in pair.processes]
            steps, right = alone[name]
            pair.run(TRIED)
            pair.begin(steps)
            result = {"steps": steps, **stops(pids, gates)}
            result |= {"right": [line[1] for line in pair.line()] == right, **counted(gates)}
        except Exception as error:
            result = {"failed": str(error)[-1500:]}
        results[name] = result
        say(name, json.dumps(result, ensure_ascii=False))
    for pair in pairs.values():
        pair.end()
    return results


def natively(names: Sequence[str]) -> dict[str, tuple[int, list[str]]]:
    """How many steps take long enough, and what comes of them."""
    pairs = {name: Pair(name) for name in names}
    results: dict[str, tuple[int, list[str]]] = {}
    for name, pair in pairs.items():
        try:
            pair.line()
            steps = int(SECONDS * TRIED / pair.run(TRIED)[0])
            seconds, came = pair.run(steps)
            results[name] = steps, came
            say("natively", name, steps, "steps in", seconds)
        except Exception as error:
            results[name] = 1000, [str(error)[-800:]]
            say("natively", name, error)
        pair.end()
    return results


def costs(server: Grants) -> list[str]:
    import torch  # where its NCCL lies

    nccl = next(Path(torch.__file__).parent.parent.glob("nvidia/**/libnccl.so.2"))
    folder = tempfile.mkdtemp()
    program = f"{folder}/allreduce"
    source = Path(__file__).with_name("allreduce.c")
    subprocess.run(["nvcc", "-O2", "-o", program, source, "-lcuda", "-ldl"], check=True)
    env = {**os.environ, **NO_MULTICAST, **server.env()}
    both = [
        subprocess.Popen([program, str(rank), folder, str(nccl)], env=env, text=True, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    return [f"rank {rank} {line}" for rank, each in enumerate(both) for line in each.communicate()[0].splitlines()]


def main() -> None:
    global cuda
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    listed = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True)
    uuids = [uuid.UUID(line.removeprefix("GPU-")).bytes for line in listed.stdout.split()]
    results: dict[str, Any] = {}

    def keep(**more: Any) -> None:
        results.update(more)
        (options.out / "gate.json").write_text(json.dumps(results, indent=1, ensure_ascii=False))

    server = Grants(Path(tempfile.mkdtemp()), uuids, 70 * GIB, extra=2 * GIB, context=600 << 20)
    if names := [name for name in options.names if name != "costs"]:
        keep(programs=under_the_gate(server, names, natively(names)))
    keep(costs=costs(server))
    say("\n".join(results["costs"]))
    server.close()


if __name__ == "__main__":
    main()
