"""Real programs under a quota that they fit and one that they do not.

    python -m tests.gpu.shim.matrix [--out FOLDER] [NAME …]

Prints for each: whether its results are those without the shim, which error it gets beyond the quota and whether it
goes on after it, and what it is charged while it holds its memory against what NVML shows for it: the difference is
what the scheduler measures and charges as overhead. Writes matrix.json; exits 1 if a line is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.gpu.shim import card
from tests.gpu.shim.frameworks import FRAMEWORKS
from tests.support.eventually import until
from tests.support.grants import Grants

FITS, TIGHT = 16 * card.GIB, 4 * card.GIB
LIMIT = 90  # seconds for one program
STATIC = "static cudart program"


@dataclass
class Run:
    results: list[str] = field(default_factory=list)
    beyond: str = ""
    charged: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    ended: bool = False
    errors: str = ""
    left: int = 0  # charged after its end


def words(name: str, beyond: bool) -> list[str]:
    if name == STATIC:
        return [str(card.compile_program("static")), "1024", *(["beyond"] if beyond else [])]
    return [sys.executable, str(card.HERE / "frameworks.py"), name, *(["beyond"] if beyond else [])]


def play(name: str, beyond: bool, grants: Grants | None) -> Run:
    """Runs a program to its end, looking at its charge at each mark."""
    with tempfile.TemporaryFile("w+") as errors:
        run = follow(name, beyond, grants, errors)
        errors.seek(0)
        run.errors = errors.read()[-2000:]
    return run


def follow(name: str, beyond: bool, grants: Grants | None, errors: IO[str]) -> Run:
    run = Run()
    env = {**os.environ, **(grants.env() if grants else {})}
    process = subprocess.Popen(
        words(name, beyond), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    limit = threading.Timer(LIMIT, process.kill)
    limit.start()
    for line in process.stdout:
        kind, _, rest = line.strip().partition(" ")
        if kind == "result":
            run.results.append(rest)
        elif kind == "beyond":
            run.beyond = rest
        elif kind == "end":
            run.ended = True
        elif kind == "mark":
            time.sleep(0.2)
            if grants:
                # The process itself, not its data loader's workers.
                run.charged.append(sum(peer.used() for peer in grants.peers if peer.pid == process.pid))
                run.held.append(card.held_by(process.pid))
            process.stdin.write("\n")
            process.stdin.flush()
    process.communicate()
    limit.cancel()
    if grants:
        until(lambda: all(peer.closed for peer in grants.peers))
        run.left = grants.used()
    return run


def right(difference: int, held: int) -> bool:
    return abs(difference) <= max(held * 0.02, 32 * card.MIB)


def line(name: str) -> tuple[dict[str, object], bool]:
    native = play(name, False, None)
    roomy, tight = card.scheduler(FITS, all_at_once=False), card.scheduler(TIGHT, all_at_once=False)
    inside, beyond = play(name, False, roomy), play(name, True, tight)
    roomy.close()
    tight.close()
    charged, held = (inside.charged or [0])[0], (inside.held or [0])[0]
    row: dict[str, object] = {
        "name": name,
        "same results": inside.ended and inside.results == native.results,
        "beyond": beyond.beyond,
        "goes on": beyond.ended and beyond.results == native.results * 2,
        "charged MiB": charged >> 20,
        "NVML MiB": held >> 20,
        "difference MiB": (held - charged) / card.MIB,
        "difference %": 100 * (held - charged) / held if held else 0.0,
        "most charged MiB beyond": max(beyond.charged, default=0) >> 20,
        "left": inside.left + beyond.left,
    }
    good = bool(row["same results"] and row["goes on"] and beyond.beyond and row["left"] == 0)
    if not good:
        row["errors"] = [run.errors for run in (native, inside, beyond)]
        row["results"] = [run.results for run in (native, inside, beyond)]
    row["within 2 % or 32 MiB"] = right(held - charged, held)
    return row, good


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[STATIC, *FRAMEWORKS])
    parser.add_argument("--out", type=Path, default=Path("."))
    arguments = parser.parse_args()
    print(json.dumps(card.about()))
    head = ("same", "goes on", "charged", "NVML", "difference", "")
    print(f"{'':28}" + "".join(f"{word:>11}" for word in head) + "  beyond the quota")
    rows, all_good = [], True
    for name in arguments.names:
        row, good = line(name)
        rows.append(row)
        all_good &= good
        print(
            f"{name:28}{row['same results']!s:>11}{row['goes on']!s:>11}{row['charged MiB']:>11}{row['NVML MiB']:>11}"
            f"{row['difference MiB']:>11.1f}{row['difference %']:>10.2f}%  {row['beyond']}",
            flush=True,
        )
        if not good:
            print(json.dumps(row, indent=1), flush=True)
    (arguments.out / "matrix.json").write_text(json.dumps({**card.about(), "rows": rows}, indent=1))
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
