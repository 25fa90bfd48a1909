"""A database that has its tables: they are made once for these migrations, and copied sooner than made.

`begin_with_tables(file)` for SQLite, `running_postgres(like=with_tables())` for PostgreSQL.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.postgres import Postgres, running_postgres

ROOT = Path(__file__).resolve().parents[2]


def _at_the_end(act: Callable[..., object], *words: str) -> None:
    """Of this process alone: a process that a test forks ends too, and the run needs these longer."""
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and act(*words))


@cache
def _made() -> Path:
    """Kept for the next run, under a name that says what it was made of."""
    made_of = [*sorted((ROOT / "web" / "migrations").glob("*.py")), *(ROOT / "requirements").glob("*.txt")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in made_of)).hexdigest()[:16]
    kept = ROOT / ".build" / f"tables-{digest}.sqlite3"
    if not kept.exists():
        with TemporaryDirectory(prefix="tables-") as folder:
            file = Path(folder, "gpushare.sqlite3")
            environ = {**os.environ, "GPUSHARE_HOME": folder, "DATABASE_URL": f"sqlite:///{file}"}
            subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environ, check=True)
            partial = kept.with_suffix(f".{os.getpid()}")
            shutil.copy(file, partial)
            partial.rename(kept)
    return kept


def begin_with_tables(file: Path) -> None:
    """For an appliance that has no database yet: what its first start would make, with nobody in it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copy(_made(), file)
    file.chmod(0o600)


@cache
def with_tables() -> Postgres:
    """A server that is stopped, and whose first database has its tables, with nobody in it."""
    stack = contextlib.ExitStack()
    _at_the_end(stack.close)
    postgres = stack.enter_context(running_postgres())
    home = stack.enter_context(TemporaryDirectory(prefix="tables-"))
    environ = {**os.environ, "GPUSHARE_HOME": home, "DATABASE_URL": postgres.url}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environ, check=True)
    postgres.stop()
    return postgres
