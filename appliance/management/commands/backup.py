"""`manage.py backup FILE`: all that cannot be made again, in one file, while everything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from appliance.backup import Failed, making


class Command(BaseCommand):
    help = "Writes database, keys, settings and audit anchor into one file, while everything runs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="or a folder, in which it is named by the time")
        parser.add_argument("--passphrase-file", type=Path, help="encrypts it by the first line of this file")
        parser.add_argument("--keep", type=int, metavar="N", help="of those in the folder the newest N, this one too")

    def handle(self, *args: Any, file: Path, passphrase_file: Path | None, keep: int | None, **options: Any) -> None:
        if keep is not None and keep < 1:
            raise CommandError("--keep takes a number of at least 1.")
        if keep is not None and not file.is_dir():
            raise CommandError(f"--keep is for a folder, and {file} is none. If it is to be one, make it first.")
        target = making.dated(file) if file.is_dir() else file
        try:
            making.make(target, passphrase_file)
        except (Failed, OSError) as error:
            raise CommandError(f"There is no backup: {error}") from None
        self.stdout.write(f"{target}: {target.stat().st_size} bytes")
        for old in making.keep_newest(file, keep) if keep else ():
            self.stdout.write(f"{old}: deleted, {keep} newer ones are there")
