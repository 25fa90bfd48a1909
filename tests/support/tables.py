"""A database that has its tables: they are made once in a run's process, and copied sooner than made."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]


@cache
def _made() -> Path:
    folder = TemporaryDirectory(prefix="tables-")
    atexit.register(folder.cleanup)
    file = Path(folder.name, "gpushare.sqlite3")
    environ = {**os.environ, "GPUSHARE_HOME": folder.name, "DATABASE_URL": f"sqlite:///{file}"}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environ, check=True)
    return file


def begin_with_tables(file: Path) -> None:
    """For an appliance that has no database yet: what its first start would make, with nobody in it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copy(_made(), file)
    file.chmod(0o600)
