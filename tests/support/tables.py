"""A database that has its tables: they are made once in a run's process, and copied sooner than made.

`begin_with_tables(file)` for SQLite, `running_postgres(like=with_tables())` for PostgreSQL.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.postgres import Postgres, running_postgres

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


@cache
def with_tables() -> Postgres:
    """A server that is stopped, and whose first database has its tables, with nobody in it."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    postgres = stack.enter_context(running_postgres())
    home = stack.enter_context(TemporaryDirectory(prefix="tables-"))
    environ = {**os.environ, "GPUSHARE_HOME": home, "DATABASE_URL": postgres.url}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environ, check=True)
    postgres.stop()
    return postgres
