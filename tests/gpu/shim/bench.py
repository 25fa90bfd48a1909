"""What the shim costs on a real card: `python -m tests.gpu.shim.bench [--rounds N] [--out FOLDER]`.

Native and shimmed processes alternate in many short rounds, and only the median of the paired ratios (or differences)
counts: a card and its host drift by more than what is measured. Prints a table; writes bench.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.gpu.shim import card
from tests.support.grants import BUILD

Pairs = dict[str, list[tuple[float, float]]]


def run(words: list[str], env: dict[str, str]) -> str:
    return subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True, check=True).stdout


def numbers(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines())}


def alternate(rounds: int, once: Callable[[dict[str, str]], dict[str, float]], shim: dict[str, str]) -> Pairs:
    pairs: Pairs = {}
    once({}), once(shim)  # warm the page cache
    for round_ in range(rounds):
        order = [{}, shim] if round_ % 2 else [shim, {}]
        results = [once(env) for env in order]
        native, shimmed = results if not order[0] else reversed(results)
        for name, value in native.items():
            pairs.setdefault(name, []).append((value, shimmed[name]))
    return pairs


def interval(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(draws * 0.025)], medians[int(draws * 0.975)]


def table(title: str, pairs: Pairs, unit: str) -> dict[str, dict[str, float]]:
    print(
        f"\n{title}\n{'':34}{'native':>12}{'shimmed':>12}{'ratio':>9}{'  95 % interval':<20}{'difference':>12}  {unit}"
    )
    rows = {}
    for name, both in pairs.items():
        ratios = [shimmed / native for native, shimmed in both]
        low, high = interval(ratios)
        row = {
            "native": statistics.median(native for native, _ in both),
            "shimmed": statistics.median(shimmed for _, shimmed in both),
            "ratio": statistics.median(ratios),
            "low": low,
            "high": high,
            "difference": statistics.median(shimmed - native for native, shimmed in both),
            "rounds": len(both),
        }
        rows[name] = row
        print(
            f"{name:34}{row['native']:12.1f}{row['shimmed']:12.1f}{row['ratio']:9.4f}"
            f"  {low:.4f} to {high:.4f}  {row['difference']:12.1f}"
        )
    return rows


def start_once(program: Path) -> Callable[[dict[str, str]], dict[str, float]]:
    def once(env: dict[str, str]) -> dict[str, float]:
        return {"start to first allocation": float(run([str(program), str(time.monotonic_ns())], env)) / 1e6}

    return once


def train_once(env: dict[str, str]) -> dict[str, float]:
    lines = run([sys.executable, str(card.HERE / "train.py")], env).splitlines()
    return {name: float(rate) for name, rate, _ in (line.split("\t") for line in lines)}


def intercepted(env: dict[str, str]) -> dict[str, float]:
    """Intercepted calls in a training step, by the counting build."""
    counting = {**env, "LD_PRELOAD": str(BUILD / "libgpushare-counted.so")}
    lines = run([sys.executable, str(card.HERE / "train.py")], counting).splitlines()
    counts = {name: float(count) for name, _, count in (line.split("\t") for line in lines)}
    print("\nintercepted calls in a training step:", counts)
    return counts


def both_in_one(program: Path, env: dict[str, str]) -> dict[str, list[float]]:
    """Native and shimmed in one process, in ns: what a wrapper alone adds."""
    print(f"\nin one process{'':20}{'native':>12}{'shimmed':>12}{'difference':>12}  ns")
    rows = {}
    for line in run([str(program), "pairs"], env).splitlines():
        name, *values = line.rsplit(" ", 3)
        rows[name] = [float(value) for value in values]
        print(f"{name:34}" + "".join(f"{value:12.1f}" for value in rows[name]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--train-rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("."))
    arguments = parser.parse_args()
    calls, start = card.compile_program("calls"), card.compile_program("start")
    grants = card.scheduler(120 * card.GIB)
    env = grants.env()
    results: dict[str, object] = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), **card.about()}
    print(json.dumps(results))
    results["in one process"] = both_in_one(calls, env)
    pairs = alternate(arguments.rounds, lambda env: numbers(run([str(calls)], env)), env)
    results["calls"] = table("calls of the runtime API", pairs, "ns")
    results["start"] = table("start of a process", alternate(arguments.rounds, start_once(start), env), "ms")
    pairs = alternate(max(arguments.rounds // 6, 3), lambda env: numbers(run([str(calls), "threads"], env)), env)
    results["threads"] = table("threads", pairs, "pairs/s")
    results["training"] = table("training steps", alternate(arguments.train_rounds, train_once, env), "steps/s")
    if (BUILD / "libgpushare-counted.so").exists():
        results["intercepted in a training step"] = intercepted(env)
    (arguments.out / "bench.json").write_text(json.dumps(results, indent=1))
    grants.close()


if __name__ == "__main__":
    main()
