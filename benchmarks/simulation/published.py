"""The paper's own figures: Tables III to V of ConVGPU (Kang, Jun, Kim, Kim, Kim; IEEE CLUSTER 2017).

Tables IV and V are what its authors measured, for 4 to 38 containers on a Tesla K20m of 5 GB. Seconds; each the mean of
six runs, so that single points are noisy: 18 containers took longer there than 20 or 22. They stand in `published.csv`.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

NAMES = {"FIFO": "fifo", "BF": "best-fit", "RU": "recent-use", "Rand": "random"}  # the paper's, and ours

# Table III: the types of container and the GPU memory of each, in MiB. A run takes "5 to 45 s", by size.
TYPES = {"nano": 128, "micro": 256, "small": 512, "medium": 1024, "large": 2048, "xlarge": 4096}


@dataclass(frozen=True, slots=True)
class Measured:
    """`finish`: until all containers had ended; `suspended`: the mean suspended time of a container. Seconds."""

    finish: float
    suspended: float


def measured() -> dict[str, dict[int, Measured]]:
    """Policy (by our name) → number of containers → what the paper's authors measured."""
    found: dict[str, dict[int, Measured]] = {}
    with Path(__file__).with_name("published.csv").open() as lines:
        for row in csv.DictReader(lines):
            times = Measured(float(row["finish_seconds"]), float(row["suspended_seconds"]))
            found.setdefault(NAMES[row["policy"]], {})[int(row["containers"])] = times
    return found
