"""Programs that take memory of a card past the shim, one for each way; `python -m benchmarks.bypass` measures them.

    words = ways(built(folder))["dlmopen"](4 * GIB)     # the command of a container

Each prints "holds BYTES at SECONDS" (since the epoch) once it has them, and keeps them.
"""

import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "attacks" / "programs" / "past.c"
CARD = ROOT / "shim" / "sim" / "card"
FLAGS = ("-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-D_GNU_SOURCE")

Command = Callable[[int], list[str]]


def built(folder: Path, *, static: bool = True) -> Path:
    """`past`, `past.so` and, for the simulated card, `past-static`, compiled into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    builds = {"past": ("-ldl",), "past.so": ("-shared", "-fPIC", "-ldl")}
    if static:
        wide = ["-mcx16"] * (platform.machine() == "x86_64")  # as shim/sim/build.mk
        builds["past-static"] = ("-static", "-DSTATIC", *wide, f"-iquote{CARD}", *map(str, CARD.glob("*.c")))
    for name, flags in builds.items():
        subprocess.run(["cc", *FLAGS, "-o", str(folder / name), str(SOURCE), *flags], check=True)
    return folder


def ways(folder: Path, *, static: bool = True) -> Mapping[str, Command]:
    """What a container is to run for each way past the shim: a command that takes a number of bytes."""
    past, library = str(folder / "past"), str(folder / "past.so")
    found: dict[str, Command] = {
        "no preload": lambda size: ["env", "-u", "LD_PRELOAD", past, "here", str(size)],
        "no environment": lambda size: [
            *("sh", "-c", 'exec env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" GPUSHARE_SIM="$GPUSHARE_SIM" "$@"'),
            *("sh", past, "here", str(size)),
        ],
        "dlmopen": lambda size: [past, "apart", str(size)],
        "dlmopen beside a session": lambda size: [past, "both", str(size)],
        "LD_AUDIT": lambda size: ["env", f"LD_AUDIT={library}", f"PAST_BYTES={size}", past, "here", "0"],
    }  # fmt: skip
    if static:
        found["static"] = lambda size: [str(folder / "past-static"), "here", str(size)]
    return found


def held_at(log: str) -> float | None:
    """When it had what it wanted, in seconds since the epoch; None if it does not yet."""
    found = re.search(r"^holds \d+ at ([\d.]+)$", log, re.MULTILINE)
    return float(found[1]) if found else None
