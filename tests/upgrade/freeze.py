"""`python -m tests.upgrade.freeze`: what later releases are tried with, from this one. Before each release, once.

The shim as `make native` built it, and the database as a stopped scheduler left it, with twenty containers living.
"""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.appliance import ROOT, Appliance
from tests.upgrade.lab import DATABASE, SETTINGS, SHIM, fill


def freeze(home: Path) -> None:
    appliance = Appliance(home, **SETTINGS)
    try:
        fill(appliance)
        with closing(sqlite3.connect(home / "database" / "gpushare.sqlite3")) as database:
            dump = "\n".join(database.iterdump())
    finally:
        appliance.close()
    DATABASE.write_bytes(lzma.compress(dump.encode()))
    SHIM.write_bytes(lzma.compress((ROOT / ".build" / "libgpushare.so").read_bytes()))


if __name__ == "__main__":
    with TemporaryDirectory(prefix="gs-", dir="/tmp") as folder:
        freeze(Path(folder) / "home")
