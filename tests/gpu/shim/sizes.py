"""Large allocations natively and under the shim, within one process: `python -m tests.gpu.shim.sizes --out FOLDER`.

Whole processes differ: of 128 MiB one takes 37 µs a call and the next 49, natively too, so that medians over processes
jump between the two. So each process here calls the driver's own function and the one that programs are given in turns,
and there are three kinds of process: with nothing preloaded (what the method itself adds), with a library that does
nothing (does it matter that one is there?), and with the shim, where what the driver's own part of a call takes is
measured from within. Shown are the paired differences, where they arise, how processes are spread, and what goes with
their being slow: the address that they got, page faults.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from tests.gpu.shim import card
from tests.gpu.shim.bench import interval, row, run, show
from tests.support.grants import BUILD

MIB = 1 << 20
SIZES = (64, 128, 256)
ROUNDS = 60  # of each size in a process
WARM = 5  # rounds before them
TABLE = 512 * MIB  # what one page table of 2 MiB pages covers
WIDE = 50  # characters of the longest bar


@dataclass(frozen=True)
class Call:
    """Nanoseconds; `inside`: of the driver's own part, −1 where it is not known."""

    seen: bool
    taken: int
    inside: int
    freed: int
    faults: int
    address: int


Process = dict[int, list[Call]]  # MiB → the calls in turns, warmed
Found = dict[str, list[Process]]  # kind of process → its processes


def programs() -> tuple[Path, Path]:
    """Compiles sizes.c and inside.c: the program, and the library to preload behind the shim."""
    folder = BUILD / "gpu"
    folder.mkdir(parents=True, exist_ok=True)
    program, library, versions = folder / "sizes", folder / "inside.so", folder / "inside.map"
    # The shim asks for the oldest version of dlsym there is.
    versions.write_text(f"{'GLIBC_2.2.5' if platform.machine() == 'x86_64' else 'GLIBC_2.17'} {{ global: dlsym; }};\n")
    subprocess.run(["cc", "-O2", "-o", program, card.HERE / "sizes.c", "-ldl"], check=True)
    script = f"-Wl,--version-script={versions}"
    words = ["cc", "-O2", "-fPIC", "-shared", script, "-o", library, card.HERE / "inside.c", "-ldl"]
    subprocess.run(words, check=True)
    return program, library


def kinds(shim: Mapping[str, str], library: Path) -> dict[str, dict[str, str]]:
    """Kind of process → its environment; `shim`: what loads the shim."""
    return {
        "nothing": {},
        "a library": {"LD_PRELOAD": str(library)},
        "the shim": {**shim, "LD_PRELOAD": f"{shim['LD_PRELOAD']}:{library}"},
    }


def parse(text: str) -> Process:
    calls: Process = defaultdict(list)
    for line in text.splitlines():
        mib, kind, *numbers, address = line.split()
        taken, inside, freed, faults = map(int, numbers)
        calls[int(mib)].append(Call(kind == "seen", taken, inside, freed, faults, int(address, 16)))
    return {mib: each[2 * WARM :] for mib, each in calls.items()}


def measure(envs: dict[str, dict[str, str]], seconds: float) -> Found:
    """Processes of all kinds in turns, as many as the time allows and at least two of each."""
    program, _ = programs()
    words = [str(program), str(ROUNDS), *map(str, SIZES)]
    found: Found = {kind: [] for kind in envs}
    deadline = time.monotonic() + seconds
    failed = 0
    while time.monotonic() < deadline or len(found[next(iter(envs))]) < 2:
        order = list(envs)[:: 1 if len(found["nothing"]) % 2 else -1]
        for kind in order:
            try:
                found[kind].append(parse(run(words, envs[kind])))
            except subprocess.CalledProcessError as error:
                # Said and left out: a run on a lent machine is not given up for one process.
                print(f"a process with {kind} preloaded failed: {error.stderr.strip()}", flush=True)
                failed += 1
                if failed > 20:
                    raise
    return found


# ---- what is shown ----


def pairs(process: Process, mib: int) -> list[tuple[Call, Call]]:
    """(driver's own, seen) of each round."""
    calls = process[mib]
    return [(b, a) if a.seen else (a, b) for a, b in zip(calls[::2], calls[1::2], strict=True)]


def middle(process: Process, mib: int, seen: bool) -> float:
    """Median nanoseconds of a process's calls of one sort."""
    return statistics.median(call.taken for call in process[mib] if call.seen == seen)


def within(found: Found, mib: int) -> None:
    """The ratio within one process, with its bar; each process is one value, as its calls are much alike."""
    rows = {
        kind: row(f"malloc {mib} MiB", [[(middle(each, mib, False), middle(each, mib, True))] for each in processes])
        for kind, processes in found.items()
    }
    show(f"{mib} MiB, preloaded:", "ns", rows)


def parts(processes: Sequence[Process], mib: int) -> None:
    """Where a shimmed call's time goes, beside the driver's own call just before or after it."""
    both = [pairs(process, mib) for process in processes]
    for name, part in (
        ("the shim's way there and back (and 2 clocks)", lambda own, seen: seen.taken - seen.inside),
        ("the driver's part, against its own call", lambda own, seen: seen.inside - own.taken),
        ("the free after it, against the own's", lambda own, seen: seen.freed - own.freed),
    ):
        values = [statistics.median(part(*pair) for pair in each) for each in both]
        low, high = interval([[value] for value in values])
        print(f"  {name:44}{statistics.median(values):+9.0f} ns  ({low:+.0f} to {high:+.0f})")
    seen = [pair[1] for each in both for pair in each]
    faulty = sum(call.faults > 0 for call in seen)
    print(f"  calls with a page fault: {faulty} of {len(seen)}")


def halves(values: Sequence[float]) -> float:
    """Where two groups part best: the cut with the least spread on both sides."""
    ordered = sorted(values)
    cuts = range(1, len(ordered))

    def spread(cut: int) -> float:
        return sum(statistics.pvariance(side) * len(side) for side in (ordered[:cut], ordered[cut:]))

    best = min(cuts, key=spread)
    return (ordered[best - 1] + ordered[best]) / 2


def spread(found: Found, mib: int) -> None:
    """How processes are spread, and how many of each kind are among the slower ones."""
    medians = {kind: [middle(process, mib, False) for process in processes] for kind, processes in found.items()}
    everybody = [value for each in medians.values() for value in each]
    cut = halves(everybody)
    sides = [[v for v in everybody if v < cut], [v for v in everybody if v >= cut]]
    fast, slow = (statistics.median(side or everybody) for side in sides)
    print(f"  the driver's own call, by process: {fast / 1e3:.1f} µs or {slow / 1e3:.1f}, parted at {cut / 1e3:.1f}")
    low, high = min(everybody), sorted(everybody)[int(len(everybody) * 0.98)]
    step = max((high - low) / 12, 1)
    for kind, values in medians.items():
        share = sum(value >= cut for value in values) / len(values)
        error = 2 * (share * (1 - share) / len(values)) ** 0.5
        print(f"    {kind:12}{len(values):4} processes, slower: {share:4.0%} ± {error:.0%}")
        counts = [0] * 14
        for value in values:
            counts[min(13, int((value - low) / step))] += 1
        for index, count in enumerate(counts):
            if count:
                print(f"      {(low + index * step) / 1e3:7.1f} µs {'#' * -(-count * WIDE // len(values))} {count}")


def places(found: Found, mib: int) -> None:
    """The driver's own calls by whether what they got lies in one page table more than it needs to."""
    sizes: dict[str, list[int]] = defaultdict(list)
    addresses = []
    for processes in found.values():
        for process in processes:
            addresses.append(len({call.address for call in process[mib]}))
            for call in process[mib]:
                if not call.seen:
                    across = call.address // TABLE != (call.address + mib * MIB - 1) // TABLE
                    sizes["across a boundary of 512 MiB" if across else "within 512 MiB"].append(call.taken)
    for name, values in sorted(sizes.items()):
        print(f"  {name:42}{statistics.median(values) / 1e3:9.1f} µs  ({len(values)} calls)")
    print(f"  addresses that a process got: {statistics.median(addresses):.0f}")


def tell(found: Found) -> None:
    for mib in SIZES:
        within(found, mib)
        parts(found["the shim"], mib)
        spread(found, mib)
        places(found, mib)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--out", type=Path, default=Path())
    arguments = parser.parse_args()
    _, library = programs()
    scheduler = card.scheduler(60 * card.GIB, 60 * card.GIB)
    print(json.dumps({"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), **card.about()}), flush=True)

    try:
        found = measure(kinds(scheduler.env(), library), arguments.seconds)
    finally:
        scheduler.close()
    plain = {
        kind: [{mib: [astuple(call) for call in calls] for mib, calls in process.items()} for process in processes]
        for kind, processes in found.items()
    }
    (arguments.out / "sizes.json").write_text(json.dumps(plain))
    tell(found)


if __name__ == "__main__":
    main()
