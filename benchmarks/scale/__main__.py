"""A lab of 300 nodes with 8 cards each and 5,000 containers, as rows: what it writes, what is read of it, what is seen.

    python -m benchmarks.scale [--nodes 300] [--cards 8] [--containers 5000] [--parts writes,feed,lists,watch,page,past]

Real PostgreSQL and Redis, the real web process, a real Chromium. What schedulers write comes through their own store
(schedulers.py), from `live` nodes at its pace, else as fast as this machine plays it: a second of 300 nodes takes it
longer than a second, and what counts are the seconds of CPU and the bytes. What is read of a day reads rows that were
put there by PostgreSQL itself (`--hours` by the minute, `--minutes` by the second, `--events` hours of events).
`--shots FOLDER` takes pictures of the overview.
"""

import argparse
import os
from pathlib import Path

from benchmarks.scale import page, reads, writes
from benchmarks.scale.lab import Lab, Size

PARTS = ("writes", "feed", "lists", "watch", "page", "past")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("nodes", 300), ("cards", 8), ("containers", 5000), ("seconds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, hours in (("hours", 6.0), ("minutes", 5.0), ("events", 0.1)):
        parser.add_argument(f"--{name}", type=float, default=hours)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--shots", type=Path)
    given = parser.parse_args()
    parts = given.parts.split(",")
    with Lab(Size(given.nodes, given.cards, given.containers)) as lab, writes.schedulers(lab) as them:
        print(f"{given.nodes} nodes, {given.cards} cards each, {given.containers} containers; "
              f"{os.cpu_count()} processors here, load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
        if "writes" in parts:
            writes.tell(lab, writes.measure(lab, them, given.seconds))
        if "feed" in parts:
            reads.feed(them)
        if {"lists", "watch", "page"} & {*parts}:
            with lab.site() as site:
                if "lists" in parts:
                    reads.lists(lab, them, site)
                if "watch" in parts:
                    reads.watchers(lab, them, site, 8)
                if "page" in parts:
                    page.measure(lab, them, site, given.shots)
        if "past" in parts:
            reads.past(lab, given.hours, given.minutes, given.events)


if __name__ == "__main__":
    main()
