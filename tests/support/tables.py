"""A database that has its tables: they are made once in a run, and copied sooner than made.

`begin_with_tables(file)` for SQLite, `running_postgres(like=with_tables())` for PostgreSQL.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.own_home import ROOT, made_once
from tests.support.postgres import DATA, Postgres

SQLITE = "gpushare.sqlite3"


def _migrate(home: str | Path, url: str) -> None:
    environ = {**os.environ, "GPUSHARE_HOME": str(home), "DATABASE_URL": url}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environ, check=True)


def begin_with_tables(file: Path) -> None:
    """For an appliance that has no database yet: what its first start would make, with nobody in it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = made_once("tables", lambda folder: _migrate(folder, f"sqlite:///{folder / SQLITE}"))
    shutil.copy(made / SQLITE, file)
    file.chmod(0o600)


def with_tables() -> Path:
    """The data of a server that is stopped, and whose first database has its tables, with nobody in it."""
    return made_once("postgres-tables", _postgres_with_tables) / DATA


def _postgres_with_tables(folder: Path) -> None:
    postgres = Postgres(str(folder))
    with TemporaryDirectory(prefix="tables-") as home:
        _migrate(home, postgres.url)
    postgres.stop()
