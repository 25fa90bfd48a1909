"""`manage.py doctor`, also as `gpushare doctor` on the host: is everything there that the appliance needs?"""

import sys
from json import dumps
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from appliance.doctor import examine
from appliance.doctor.finding import State


class Command(BaseCommand):
    help = "Checks this host: what is wrong, what it means, what to do. Changes nothing."
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="as one JSON object")

    def handle(self, *args: Any, json: bool = False, **options: Any) -> None:
        """Ends with exit code 1 if something is wrong; notes alone are 0."""
        findings = []
        for finding in examine():
            findings.append(finding)
            if not json:
                self.stdout.write(finding.text())
        count = {state: sum(finding.state == state for finding in findings) for state in State}
        if json:
            answer = {"ok": not count[State.WRONG], "findings": [finding.as_json() for finding in findings]}
            self.stdout.write(dumps(answer, indent=2))
        else:
            self.stdout.write(f"{count[State.WRONG]} wrong, {count[State.NOTE]} to note, {count[State.FINE]} fine.")
        sys.exit(1 if count[State.WRONG] else 0)
