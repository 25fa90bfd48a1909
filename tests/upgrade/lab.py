"""Twenty containers on one card, under the shim of a release: fourteen hold memory, six wait for it in turn."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

from tests.support.appliance import WORKLOAD, Appliance, until

FROZEN = Path(__file__).resolve().parent / "frozen"
RELEASE = "0.1.0"
SHIM = FROZEN / f"libgpushare-{RELEASE}.so.xz"
DATABASE = FROZEN / f"database-{RELEASE}.sql.xz"
LAST = "0012_node_figures"  # the last migration of that release
KEY = f"the key of release {RELEASE}, which signs its audit log"
HOLD, WAIT = 14, 6
SETTINGS = {"gpus": "sim:1x5GiB", "GPUSHARE_SECRET_KEY": KEY, "GPUSHARE_NODE": "lab", "GPUSHARE_GIVE_WAY": "off",
            "GPUSHARE_COMPUTE": "shared"}  # fmt: skip


def unpacked(source: Path, target: Path) -> Path:
    target.write_bytes(lzma.decompress(source.read_bytes()))
    return target


def fill(appliance: Appliance, shim: Path | None = None) -> None:
    """`shim`: another one than this release's."""
    program = ["env", f"LD_PRELOAD={shim}", WORKLOAD] if shim else [WORKLOAD]
    for number in range(HOLD + WAIT):
        # 14 × (293 + 66) MiB are 5,026 of 5,120; the first of those who wait gets its context of 66, and not its 350,
        # and 28 are too few for another's, now and when all of them ask again after a restart.
        size, quota = ("293MiB", "360MiB") if number < HOLD else ("350MiB", "430MiB")
        name = f"job-{number:02}"
        appliance.launch(*program, "--bytes", size, "--chunks", "1", "--hold", "3600", name=name, gpu_memory=quota)
        wanted = "running" if number < HOLD else "suspended"
        until(lambda name=name, wanted=wanted: _stands(appliance.named(name), wanted))


def _stands(container: dict[str, Any], wanted: str) -> bool:
    return container["state"] == wanted and (wanted == "suspended" or container["gpus"][0]["used"] >= 280 << 20)


def places(appliance: Appliance) -> list[str]:
    """The names of those who wait, in their order."""
    return [waiting["name"] for waiting in appliance.api("GET", "queue/")["results"]]
