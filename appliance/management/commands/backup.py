"""`manage.py backup FILE`: all that cannot be made again, in one file, while everything runs."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from appliance.backup import Failed, making


class Command(BaseCommand):
    help = "Writes database, keys, settings and audit anchor into one file, while the appliance runs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="file, or a folder: then the name is the time")
        parser.add_argument("--passphrase-file", type=Path, help="encrypt it with the first line of this file")
        parser.add_argument(
            "--keep", type=int, metavar="N", help="keep the newest N backups of the folder, this one included"
        )

    def handle(self, *args: Any, file: Path, passphrase_file: Path | None, keep: int | None, **options: Any) -> None:
        if keep is not None and keep < 1:
            raise CommandError("--keep takes a number of at least 1.")
        if keep is not None and not file.is_dir():
            raise CommandError(f"--keep needs a folder, and {file} is not one. Create it first.")
        target = making.dated(file) if file.is_dir() else file
        try:
            making.make(target, passphrase_file)
        except (Failed, OSError) as error:
            raise CommandError(f"The backup failed: {error}") from None
        self.stdout.write(f"{target}: {target.stat().st_size} bytes")
        for old in making.keep_newest(file, keep) if keep else ():
            self.stdout.write(f"{old}: deleted, {keep} newer ones exist")
