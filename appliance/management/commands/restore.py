"""`manage.py restore FILE`: a backup onto an empty host. The audit log is verified before anybody believes it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from appliance.backup import SETTINGS, Failed, restoring
from scheduler.starting import AlreadyRunning, only_one
from web.audit import anchor
from web.models import Node


class Command(BaseCommand):
    help = "Restores a backup into an empty database, upgrades it to this release, and verifies the audit log."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--passphrase-file", type=Path, help="of an encrypted backup: file with the passphrase")

    def handle(self, *args: Any, file: Path, passphrase_file: Path | None, **options: Any) -> None:
        try:
            anchor.begin()  # of a backup without one
            with only_one(settings.GPUSHARE_HOME):
                about = restoring.restore(file, passphrase_file)
                self.stdout.write(
                    f"Restored what {about['node']} was at {about['made_at']} (gpushare {about['version']})."
                )
                # In processes of their own: this one began with another key.
                self._manage("migrate", "-v0")
                Node.objects.update(holder="")  # who had a node's name then does not have it here
                self._manage("verify_audit")
        except (Failed, OSError, AlreadyRunning) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"The settings it ran with: {settings.GPUSHARE_HOME / f'restored-{SETTINGS}'}")

    def _manage(self, *words: str) -> None:
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *words]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
        self.stdout.write(done.stdout, ending="")
        if done.returncode:
            raise Failed(f"The restored data failed a check:\n{done.stderr.strip()}\nIf the backup's host had "
                         f"GPUSHARE_SECRET_KEY, set it here as well.")  # fmt: skip
