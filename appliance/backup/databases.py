"""The database as one file, taken while others write, and an empty database made of such a file."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, connections

from appliance.backup import Failed

NAMES = {"sqlite": "database.sqlite3", "postgresql": "database.dump"}  # by Django's vendor


def name() -> str:
    return NAMES[connection.vendor]


def copy_to(path: Path) -> None:
    """As it is at one moment; nobody who writes has to wait. Raises Failed."""
    if getattr(connection, "by_owner", None):  # root opens no file that another user can write
        connection.ensure_connection()
        with path.open("wb") as file:
            connection.connection.copy_to(file)
    elif connection.vendor == "sqlite":
        source = f"file:{connection.settings_dict['NAME']}?mode=ro"
        with closing(sqlite3.connect(source, uri=True)) as ours, closing(sqlite3.connect(path)) as copy:
            ours.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
    else:
        _postgres("pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={path}")


def refuse_other_writer() -> None:
    """Raises Failed where `fill_from` would have root open a file that another user can write."""
    if getattr(connection, "by_owner", None):
        raise Failed("Another user can write the folder of the database, so root makes no database there. Restore "
                     "into a new GPUSHARE_HOME, or delete that folder first.")  # fmt: skip


def is_empty() -> bool:
    return not connection.introspection.table_names()


def fill_from(path: Path) -> None:
    """Raises Failed."""
    refuse_other_writer()
    connections.close_all()
    if connection.vendor == "sqlite":
        place = Path(str(connection.settings_dict["NAME"]))
        for each in (place, *place.parent.glob(f"{place.name}-*")):
            each.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as copy, closing(sqlite3.connect(place)) as ours:
            place.chmod(0o600)
            copy.backup(ours)
    else:
        database = str(connection.settings_dict["NAME"])
        _postgres("pg_restore", "--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction",
                  f"--dbname={database}", str(path))  # fmt: skip


def _postgres(program: str, *words: str) -> None:
    found = shutil.which(program)
    if found is None:
        raise Failed(f"{program} is not installed. The package postgresql-client has it.")
    given: dict[str, Any] = {**settings.DATABASES["default"]}
    names = {"PGHOST": "HOST", "PGPORT": "PORT", "PGUSER": "USER", "PGPASSWORD": "PASSWORD", "PGDATABASE": "NAME"}
    environ = os.environ | {variable: str(given[key]) for variable, key in names.items() if given.get(key)}
    done = subprocess.run([found, *words], env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{program} failed: {done.stderr.strip()[-500:]}")
