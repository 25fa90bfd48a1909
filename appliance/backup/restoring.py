"""Putting a backup back, onto a host that has nothing."""

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from appliance.backup import ABOUT, KEPT, SETTINGS, Failed, databases, sealed
from appliance.backup.workplace import workplace


def restore(source: Path, passphrase: Path | None = None) -> dict[str, Any]:
    """What the backup says about itself. Changes nothing if it raises Failed before the database is filled."""
    home: Path = settings.GPUSHARE_HOME
    databases.refuse_other_writer()
    if not databases.is_empty():
        raise Failed("The database is not empty. A backup is restored onto an empty host: choose another GPUSHARE_HOME "
                     "or DATABASE_URL, or move the existing data away.")  # fmt: skip
    with _opened(source, passphrase) as content:
        about = _read_about(content / ABOUT)
        _refuse_other(about)
        for name in KEPT:
            if (content / name).exists():
                _put(content / name, home / name)
        _put(content / SETTINGS, home / f"restored-{SETTINGS}")
        databases.fill_from(content / databases.name())
    return about


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads(path.read_text())
        str(about["version"]), str(about["database"]), [str(name) for name in about["migrations"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise Failed(f"The backup's {ABOUT} cannot be read. Use another backup.") from None
    return about


def _refuse_other(about: dict[str, Any]) -> None:
    if about["database"] != connection.vendor:
        raise Failed(f"The backup is of {about['database']}, and DATABASE_URL leads to {connection.vendor}.")
    known = {name for app, name in MigrationLoader(None).disk_migrations if app == "web"}
    if newer := sorted({*about["migrations"]} - known):
        raise Failed(f"The backup is of a newer release ({about['version']}; it has {', '.join(newer)}). "
                     "Install that release, or a newer one, and restore it there.")  # fmt: skip


@contextmanager
def _opened(source: Path, passphrase: Path | None) -> Iterator[Path]:
    """A folder with what is in the backup. Raises Failed."""
    old = os.umask(0o077)
    try:
        with workplace(settings.GPUSHARE_HOME, ".restore-") as folder:
            if sealed.is_encrypted(source):
                if passphrase is None:
                    raise Failed(f"{source} is encrypted: --passphrase-file FILE names the file with its passphrase.")
                sealed.decrypt(source, plain := folder / "plain", passphrase)
                source = plain
            wanted = {ABOUT, SETTINGS, databases.name(), *KEPT}
            try:
                with tarfile.open(source, "r:") as archive:
                    for each in archive:  # by hand: Debian 12's Python has no `extractall(filter=…)`
                        known = each.isfile() and each.name in {*wanted, *databases.NAMES.values()}
                        if known and (file := archive.extractfile(each)):
                            with file, (folder / each.name).open("wb") as target:
                                shutil.copyfileobj(file, target)
            except (tarfile.TarError, EOFError) as error:
                raise Failed(f"{source} is not a backup of gpushare, or is truncated: {error}.") from None
            if not (folder / ABOUT).exists():
                raise Failed(f"{source} is not a backup of gpushare: it has no {ABOUT}.")
            there = {each.name for each in folder.iterdir()}
            if SETTINGS not in there or not there & set(databases.NAMES.values()):
                raise Failed(f"{source} is truncated: its end is missing.")
            yield folder
    finally:
        os.umask(old)


def _put(source: Path, target: Path) -> None:
    """In one step, for its owner alone."""
    partial = target.with_suffix(".part")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(source.read_bytes())
        os.fsync(file.fileno())
    partial.replace(target)
