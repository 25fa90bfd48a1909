"""How late decisions come while web hooks are sent to that are down, slow and hang: python -m benchmarks.web.hooks

An appliance on the simulated card, five seconds without a receiver and five while messages wait for three of them, six
times in turn: by how much later than asked the scheduler's loop wakes, and the ratio of the medians. Messages are sent
by the web processes, so the ratio has to be 1; the bar is 1.5, as both share the machine's cores.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.web.rest import p99
from tests.support.lateness import beside_hooks

BAR = 1.5


def main(turns: int, seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
        late = beside_hooks(Path(folder) / "var", turns, seconds)
    for name, values in (("without", late.without), ("beside", late.beside)):
        print(f"{name:>8}: median {statistics.median(values):.2f} ms, p99 {p99(values):.2f}, longest {max(values):.1f}")
    print(f"ratio of the medians {late.ratio:.2f}; the bar {BAR}; {late.waited} messages waited")
    return int(late.ratio > BAR)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 6, float(sys.argv[2]) if len(sys.argv) > 2 else 5.0))
