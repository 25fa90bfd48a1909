"""What a second of the lab writes, and what that takes of PostgreSQL, Redis and the hosts."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from benchmarks.scale.lab import Lab, Watch

TABLES = ("web_usagesample", "web_allocationevent", "web_seal")
DAY = 86_400
MB = 1e6


class Schedulers:
    """The processes that play the nodes' schedulers."""

    def __init__(self, lab: Lab, processes: int = 2) -> None:
        edges = [lab.size.nodes * place // processes for place in range(processes + 1)]
        self.counts = [end - begin for begin, end in pairwise(edges)]
        self.all = [lab.schedulers(begin, count) for begin, count in zip(edges, self.counts, strict=False)]

    def tell(self, *words: Sequence[object] | object) -> None:
        for process in self.all:
            assert process.stdin
            print(*words, file=process.stdin, flush=True)

    def result(self) -> dict[str, float]:
        """The sums of what each of them measured; `wall` is the longest."""
        found = []
        for process in self.all:
            assert process.stdout
            found.append(json.loads(process.stdout.readline()))
        return {name: (max if name == "wall" else sum)(each[name] for each in found) for name in found[0]}

    def do(self, *words: object) -> dict[str, float]:
        self.tell(*words)
        return self.result()

    def live(self, nodes: int, seconds: float) -> None:
        """Of all nodes so many are played in whole. Returns at once: `result` waits."""
        self.tell("live", nodes // len(self.all), seconds)

    def close(self) -> None:
        for process in self.all:
            assert process.stdin
            process.stdin.close()
        for process in self.all:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def schedulers(lab: Lab) -> Iterator[Schedulers]:
    """All nodes and cards known, and the containers there."""
    found = Schedulers(lab)
    try:
        found.do("open")
        lab.fill()
        found.do("hold")
        yield found
    finally:
        found.close()


def measure(lab: Lab, them: Schedulers, seconds: int) -> dict[str, Any]:
    """Of so many seconds of all nodes, played as fast as this machine does."""
    before = {table: (rows(lab, table), bytes_of(lab, table)) for table in TABLES}
    wal, commits = lab.query("SELECT pg_current_wal_lsn()"), committed(lab)
    updates = updated(lab)
    with Watch(lab) as watch:
        result = them.do("flood", seconds)
    found: dict[str, Any] = {
        "wall": watch.wall / seconds,
        "hosts": result["cpu"] / seconds,
        **{name: cpu / seconds for name, cpu in watch.cpu.items()},
        "wal": float(lab.query("SELECT pg_current_wal_lsn() - %s::pg_lsn", wal)) / seconds,
        "commits": (committed(lab) - commits) / seconds,
        "updates": (updated(lab) - updates) / seconds,
        "tables": {},
    }
    for table, (count, size) in before.items():
        new = rows(lab, table) - count
        grown = bytes_of(lab, table) - size
        found["tables"][table] = {"rows": new / seconds, "bytes": grown / new if new else 0.0}
    return found


def rows(lab: Lab, table: str) -> int:
    return int(lab.query(f"SELECT count(*) FROM {table}"))


def bytes_of(lab: Lab, table: str) -> int:
    """With its indexes."""
    return int(lab.query(f"SELECT pg_total_relation_size('{table}')"))


def committed(lab: Lab) -> int:
    lab.query("SELECT pg_stat_force_next_flush()")
    return int(lab.query("SELECT sum(xact_commit) FROM pg_stat_database"))


def updated(lab: Lab) -> int:
    return int(lab.query("SELECT sum(n_tup_upd) FROM pg_stat_user_tables"))


def tell(lab: Lab, found: dict[str, Any]) -> None:
    size = lab.size
    print(f"\na second of {size.nodes} nodes, {size.nodes * size.cards} cards, {size.containers} containers:")
    for table, each in found["tables"].items():
        day = each["rows"] * each["bytes"] * DAY / 1e9
        print(f"  {table:22} {each['rows']:8.0f} rows of {each['bytes']:5.0f} bytes with indexes: {day:7.1f} GB a day")
    print(f"  {'rows changed':22} {found['updates']:8.0f}")
    print(f"  {'transactions':22} {found['commits']:8.0f}")
    print(f"  {'write-ahead log':22} {found['wal'] / MB:8.1f} MB: {found['wal'] * DAY / 1e9:.0f} GB a day")
    for name in ("postgres", "redis", "hosts"):
        print(f"  CPU of {name:15} {found[name]:8.2f} s")
    print(f"  played here in        {found['wall']:8.2f} s")
