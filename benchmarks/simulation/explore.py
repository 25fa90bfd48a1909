"""Explores every state of small hosts for deadlocks and broken invariants; finds the deadlock of the paper's rules.

    python -m benchmarks.simulation.explore [--help]

The exit code is 1 if a state is broken.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product, repeat
from typing import Any

from benchmarks.simulation.exploring import cut_explorer, deadlock, planned_explorer, planned_lab, turns_explorer
from benchmarks.simulation.exploring.explorer import Broken, explore, hosts
from benchmarks.simulation.exploring.splits import Cards, check
from benchmarks.simulation.literal import RULES
from scheduler.core.policies import POLICIES
from scheduler.core.state import Mode

HOST = ("containers", "capacity", "gpus", "pauses", "changes", "swaps", "gives_way", "restarts", "foreign", "people")


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation.explore", description=__doc__)
    parser.add_argument("--containers", type=int, default=3)
    parser.add_argument("--capacity", type=int, default=3, help="units on each GPU")
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--policy", action="append", choices=[*POLICIES, *RULES], help="only this one; may be repeated")
    parser.add_argument("--pauses", action="store_true", help="containers may be paused and resumed")
    parser.add_argument("--changes", action="store_true", help="quotas may change")
    parser.add_argument("--people", type=int, default=1, help="whose the containers are, in every way")
    parser.add_argument("--foreign", action="store_true", help="foreign memory may come and go")
    parser.add_argument("--swaps", action="store_true", help="containers may be swapped out and back")
    parser.add_argument(
        "--restarts", action="store_true", help="the scheduler may be restarted, unless anybody is swapped out"
    )
    parser.add_argument(
        "--gives-way",
        type=Mode,
        choices=list(Mode),
        default=Mode.OFF,
        help="holders may give way to those who wait",
    )
    parser.add_argument(
        "--splits",
        action="store_true",
        help="every split and every step from it, whatever the policy and the queue",
    )

    parser.add_argument(
        "--turns",
        type=int,
        metavar="STEPS",
        help="instead: turns of computing, so many steps deep (6 takes minutes)",
    )
    parser.add_argument(
        "--planned",
        type=int,
        metavar="WALKS",
        help="instead: planned launches beside reservations, and so many walks on larger hosts (40 take minutes)",
    )
    parser.add_argument("--cut", action="store_true", help="instead: how ranks of a training are stopped together")
    options = parser.parse_args(words)
    if options.restarts and (options.swaps or options.gives_way is not Mode.OFF):
        parser.error("Restarts are explored without swaps, and without giving way.")
    if not 1 <= options.containers <= 8 or options.capacity < 1:
        parser.error("There are from 1 to 8 containers, and at least 1 unit on each GPU.")
    return options


def main(words: Sequence[str] | None = None) -> None:
    """`words` are the arguments, those of the command line without any. A broken state ends the process: code 1."""
    options = _options(words)
    if options.turns is not None:
        for party in turns_explorer.PARTIES:
            _all_of(f"{party}: {options.turns} steps", partial(turns_explorer.explore, party, options.turns))
        return
    if options.planned is not None:
        for lab in planned_lab.LABS:
            _all_of(str(lab), partial(planned_explorer.explore, lab, 10_000))
        for lab in planned_lab.LARGE:
            _all_of(f"{lab}: {options.planned} walks", partial(planned_explorer.walk, lab, range(options.planned)))
        return
    if options.cut:
        for training, kills in product(cut_explorer.TRAININGS, (False, True)):
            _all_of(f"{training}{', kills' * kills}", partial(cut_explorer.explore, training, kills))
        return
    if options.splits:
        _splits(Cards(options.containers, options.capacity, options.gpus, options.pauses, options.foreign))
        return
    for policy in options.policy or POLICIES:
        if policy in RULES:
            _deadlock(policy, options.capacity, options.containers)
        else:
            _explore(policy, **{name: getattr(options, name) for name in HOST})


def _explore(policy: str, **host: Any) -> None:
    began = time.monotonic()
    try:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            counts = list(pool.map(explore, hosts(policy, **host)))
    except Broken as broken:
        sys.exit(f"{policy}: this must not be.\n{broken}")
    what = {"pauses": "pauses", "changes": "changes of quota", "swaps": "swaps", "restarts": "restarts",
            "foreign": "foreign memory"}  # fmt: skip
    with_what = [f", {host['people']} people"] if host["people"] > 1 else []
    with_what += [f", {name}" for key, name in what.items() if host[key]]
    with_what += [f", giving way: {mode}" for mode in [host["gives_way"]] if mode is not Mode.OFF]
    print(
        f"{policy}: {host['containers']} containers, {host['gpus']} GPU of {host['capacity']} units"
        f"{''.join(with_what)}: {len(counts)} hosts, "
        f"{sum(counts)} states, none broken ({time.monotonic() - began:.0f} s)"
    )


def _all_of(what: str, explore: Callable[[], int]) -> None:
    began = time.monotonic()
    try:
        states = explore()
    except (Broken, turns_explorer.Unsound, cut_explorer.Unsound) as broken:
        sys.exit(f"{what}: this must not be.\n{broken}")
    print(f"{what}, {states} states, none broken ({time.monotonic() - began:.0f} s)", flush=True)


def _splits(cards: Cards) -> None:
    began = time.monotonic()
    try:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            counts = list(pool.map(check, repeat(cards), range(len(cards.parts()))))
    except Broken as broken:
        sys.exit(f"This must not be.\n{broken}")
    splits, steps = (sum(column) for column in zip(*counts, strict=True))
    print(
        f"{cards.containers} containers, {cards.gpus} GPU of {cards.capacity} units{', pauses' * cards.pauses}"
        f"{', foreign memory' * cards.foreign}: "
        f"{splits} splits, {steps} steps, none broken ({time.monotonic() - began:.0f} s)"
    )


def _deadlock(policy: str, capacity: int, containers: int) -> None:
    way = deadlock.shortest(policy, capacity, containers)
    if way is None:
        print(f"{policy}: no deadlock with {containers} containers on {capacity} units")
    else:
        print("\n  ".join([f"{policy}: the shortest way into its deadlock", *way]))


if __name__ == "__main__":
    main()
