"""What the shim costs on a real card: `python -m tests.gpu.shim.bench [--seconds N] [--out FOLDER]`.

Native and shimmed alternate in as many short rounds as the time allows, and only the median of the paired ratios (or
differences) counts: a card and its host drift by more than what is measured. Prints a table with each bar of the
issue and whether it is met; writes bench.json after each section, so that a run that is cut keeps what it had.

`--peer LIBRARY`: another build of libgpushare.so, of an earlier commit say, takes its turns with both, and has tables
of its own beside: what a change costs shows in one run on one card.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.shim import card, starting, training
from tests.gpu.shim.bars import bar
from tests.gpu.shim.starting import in_turn
from tests.support.grants import BUILD

Pairs = dict[str, list[tuple[float, float]]]  # name → native and shimmed, round by round
# What part of the time each section gets; what runs inside one process takes a few seconds.
SHARES = {
    "calls": 0.15,
    "start": 0.14,
    "start in a container": 0.12,
    "threads": 0.11,
    "training, the card limits": 0.12,
    "training, the processor limits": 0.36,
}


def run(words: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def numbers(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines())}


def alternate(
    seconds: float, once: Callable[[dict[str, str]], dict[str, float]], shims: dict[str, dict[str, str]]
) -> dict[str, Pairs]:
    """Of each of the libraries its pairs; all in turns with native."""
    envs = {"native": {}, **shims}
    pairs: dict[str, Pairs] = {name: {} for name in shims}
    for env in envs.values():
        once(env)  # warm the page cache
    begin, rounds = time.monotonic(), 0
    # Stops where one more round would be too long.
    while rounds < 3 or (time.monotonic() - begin) * (rounds + 1) / rounds < seconds:
        results = {name: once(envs[name]) for name in in_turn(list(envs), rounds)}
        for shim in shims:
            for name, value in results["native"].items():
                pairs[shim].setdefault(name, []).append((value, results[shim][name]))
        rounds += 1
    return pairs


def interval(groups: Sequence[Sequence[float]], draws: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval of the median.

    Groups are drawn first and then their values: two processes may differ by more than rounds of the same ones do.
    """
    chance = random.Random(1)

    def draw() -> float:
        drawn = chance.choices(groups, k=len(groups))
        return statistics.median(value for group in drawn for value in chance.choices(group, k=len(group)))

    medians = sorted(draw() for _ in range(draws))
    return medians[int(draws * 0.025)], medians[int(draws * 0.975)]


def row(name: str, groups: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any]:
    both = [pair for group in groups for pair in group]
    low, high = interval([[shimmed / native for native, shimmed in group] for group in groups])
    it: dict[str, Any] = {
        "native": statistics.median(native for native, _ in both),
        "shimmed": statistics.median(shimmed for _, shimmed in both),
        "ratio": statistics.median(shimmed / native for native, shimmed in both),
        "low": low,
        "high": high,
        "difference": statistics.median(shimmed - native for native, shimmed in both),
        "rounds": len(both),
    }
    it["bar"], it["met"] = bar(name, it)
    return it


def show(title: str, unit: str, rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    head = f"{'native':>12}{'shimmed':>12}{'ratio':>9}  {'95 % interval':<18}{'differ':>10} {unit:8}{'rounds':>6}"
    print(f"\n{title:28}{head}")
    for name, it in rows.items():
        print(
            f"{name:28}{it['native']:12.1f}{it['shimmed']:12.1f}{it['ratio']:9.4f}"
            f"  {it['low']:.4f} to {it['high']:.4f}  {it['difference']:10.1f} {'':8}{it['rounds']:>6}"
            f"  {it['bar'] or '-'}{'' if it['met'] is None else ': met' if it['met'] else ': MISSED'}",
            flush=True,
        )
    return rows


def table(title: str, unit: str, pairs: Pairs) -> dict[str, dict[str, Any]]:
    """Each round is a process of its own: a group of one."""
    return show(title, unit, {name: row(name, [[pair] for pair in both]) for name, both in pairs.items()})


def start_once(program: Path) -> Callable[[dict[str, str]], dict[str, float]]:
    def once(env: dict[str, str]) -> dict[str, float]:
        return {"start to first allocation": float(run([str(program), str(time.monotonic_ns())], env)) / 1e6}

    return once


def scaling(pairs: Pairs) -> Pairs:
    """How many times one thread's rate many threads have."""
    found: Pairs = {}
    for name, both in pairs.items():
        kind, _, threads = name.partition(", ")
        if threads != "1 threads":
            alone = pairs[f"{kind}, 1 threads"]
            scales = [(n / n1, s / s1) for (n, s), (n1, s1) in zip(both, alone, strict=True)]
            found[f"{kind}, {threads} to 1"] = scales
    return found


def both_in_one(program: Path, env: dict[str, str], shim: str) -> dict[str, dict[str, Any]]:
    """Native and shimmed in one process: what a wrapper alone adds."""
    print(f"\n{'inside one process' + shim:28}{'native':>12}{'shimmed':>12}{'differ':>10} ns")
    rows = {}
    for line in run([str(program), "pairs"], env).splitlines():
        name, *values = line.rsplit(" ", 3)
        native, shimmed, difference = map(float, values)
        it: dict[str, Any] = {"native": native, "shimmed": shimmed, "difference": difference}
        it["bar"], it["met"] = bar(name, it)
        rows[name] = it
        verdict = "" if it["met"] is None else ": met" if it["met"] else ": MISSED"
        print(f"{name:28}{native:12.1f}{shimmed:12.1f}{difference:10.1f}     {it['bar'] or '-'}{verdict}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=250)
    parser.add_argument("--only", nargs="+", choices=SHARES, default=list(SHARES), help="these sections and no others")
    parser.add_argument("--peer", type=Path, help="another libgpushare.so")
    parser.add_argument("--out", type=Path, default=Path())
    arguments = parser.parse_args()
    begin = time.monotonic()
    calls, start = card.compile_program("calls"), card.compile_program("start")
    # One process at a time gets the whole quota at once; those that train together get a part each.
    alone, shared = (card.scheduler(120 * card.GIB, extra * card.GIB) for extra in (120, 1))
    env = alone.env()
    shims = {"": env}
    if arguments.peer:
        shims[", peer"] = {**env, "LD_PRELOAD": str(arguments.peer.resolve())}
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), **card.about()}
    print(json.dumps(results), flush=True)

    def keep(section: str, rows: dict[str, Any]) -> None:
        results[section] = rows
        (arguments.out / "bench.json").write_text(json.dumps(results, indent=1))

    def share(section: str) -> float:
        """Its part of the time that is left."""
        left = sum(SHARES[name] for name in arguments.only if name not in results)
        return float(begin + arguments.seconds - time.monotonic()) * SHARES[section] / left

    def compare(section: str, title: str, unit: str, once: Callable[[dict[str, str]], dict[str, float]]) -> None:
        for shim, pairs in alternate(share(section), once, shims).items():
            keep(section + shim, table(title + shim, unit, pairs))
            if section == "threads":
                keep("scaling" + shim, table("scaling" + shim, "times", scaling(pairs)))

    try:
        if "calls" in arguments.only:
            for shim, shimmed in shims.items():
                keep("inside one process" + shim, both_in_one(calls, shimmed, shim))
            compare("calls", "calls of the runtime API", "ns", lambda env: numbers(run([str(calls)], env)))
        if "start" in arguments.only:
            compare("start", "start of a process", "ms", start_once(start))
        if "start in a container" in arguments.only:
            # A part of that time is the appliance's own start.
            peers = {shim: env["LD_PRELOAD"] for shim, env in shims.items() if shim}
            for shim, both in starting.rounds(start, share("start in a container") * 0.7, peers).items():
                pairs = {"start in a container": both}
                keep("start in a container" + shim, table("with the real scheduler" + shim, "ms", pairs))
        if "threads" in arguments.only:
            compare("threads", "threads", "pairs/s", lambda env: numbers(run([str(calls), "threads"], env)))
        for limit, (images, sequences, couples) in training.SIZES.items():
            if (section := f"training, {limit}") in arguments.only:
                together = shared.env()
                counting = {**together, "LD_PRELOAD": str(BUILD / "libgpushare-counted.so")}
                counts, groups = training.rounds(share(section), images, sequences, couples, together, counting)
                rows = {name: row(name, each) for name, each in groups.items()}
                keep(section, show(section, "steps/s", rows))
                print("intercepted calls in a training step (bar: none):", counts, flush=True)
                keep(f"intercepted in {section}", counts)
    finally:
        alone.close()
        shared.close()


if __name__ == "__main__":
    main()
