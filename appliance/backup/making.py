"""Making a backup, while everything runs."""

import json
import os
import shlex
import tarfile
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from appliance import VERSION
from appliance.backup import ABOUT, KEPT, SETTINGS, Failed, databases, sealed
from appliance.backup.workplace import workplace

PREFIX = "gpushare-"
OURS = ("GPUSHARE_", "DATABASE_URL", "REDIS_URL", "HOST", "PORT")


def make(target: Path, passphrase: Path | None = None) -> None:
    """`target` is there whole or not at all, for its owner alone. Raises Failed or OSError."""
    if databases.is_empty():
        raise Failed("There is nothing to back up: the database is empty. Is GPUSHARE_HOME or DATABASE_URL right?")
    old = os.umask(0o077)
    try:
        with workplace(target.parent, ".backup-") as folder:
            _collect(content := folder / "content")
            whole = folder / "whole"
            with tarfile.open(whole, "w", dereference=False) as archive:
                for path in sorted(content.iterdir()):
                    archive.add(path, path.name)
            if passphrase is not None:
                sealed.encrypt(whole, whole := folder / "sealed", passphrase)
            with whole.open("rb") as file:
                os.fsync(file.fileno())
            whole.replace(target)
    finally:
        os.umask(old)


def _collect(content: Path) -> None:
    content.mkdir()
    for name in KEPT:
        if (path := settings.GPUSHARE_HOME / name).exists():
            (content / name).write_bytes(path.read_bytes())
    databases.copy_to(content / databases.name())
    given = {name: value for name, value in sorted(os.environ.items()) if name.startswith(OURS[0]) or name in OURS[1:]}
    (content / SETTINGS).write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in given.items()))
    known = sorted(name for app, name in MigrationRecorder(connection).applied_migrations() if app == "web")
    about = {"version": VERSION, "made_at": datetime.now(UTC).isoformat(), "node": settings.GPUSHARE_NODE,
             "database": connection.vendor, "migrations": known}  # fmt: skip
    (content / ABOUT).write_text(json.dumps(about, indent=1))


def dated(folder: Path) -> Path:
    """A name of its own for each second."""
    return folder / f"{PREFIX}{datetime.now(UTC):%Y%m%d-%H%M%S}.backup"


def keep_newest(folder: Path, count: int) -> list[Path]:
    """Deletes all other backups with names of `dated`, and tells which."""
    old = sorted(folder.glob(f"{PREFIX}????????-??????.backup"))[:-count]
    for path in old:
        path.unlink()
    return old
