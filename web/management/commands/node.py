"""manage.py node: hosts that are to be nodes of this appliance, and those that are not any more."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from web.errors import Problem
from web.services import nodes
from web.services.joining import invitations, rules, setup

BY = "manage.py node"


class Command(BaseCommand):
    help = "Adds and removes nodes: hosts with GPUs and a scheduler of their own. docs/nodes.md tells how."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="prints the command with which a host joins, once and within an hour")
        add.add_argument("name", help="the node's: its host name, or another")
        remove = verbs.add_parser("remove", help="takes a node's rights in the database away, within ten seconds")
        remove.add_argument("name")
        remove.add_argument("--force", action="store_true", help="also with containers: they are recorded as lost")
        verbs.add_parser("setup", help="prints SQL with which a superuser of PostgreSQL sets it up for nodes, once")
        verbs.add_parser("rules", help="renews the nodes' rights in the database for this release; safe to repeat")

    def handle(self, *args: Any, verb: str, name: str = "", **options: Any) -> None:
        try:
            if verb == "add":
                token = invitations.invite(BY, name)
                self.stderr.write(f"On {name}, as root and within an hour, with gpushare installed:")
                self.stdout.write(invitations.command(name, token))
                if why_not := invitations.unreachable():
                    self.stderr.write(why_not)
            elif verb == "remove":
                nodes.expel(BY, name, force=options["force"])
                self.stdout.write(f"{name} has no access to the database any more. Its records stay.")
            elif verb == "setup":
                self.stdout.write(setup.script())
            elif rules.are_applied():
                rules.apply()
                self.stdout.write("The nodes' rights are those of this release.")
            else:
                self.stdout.write("PostgreSQL is not set up for nodes: no node has a role of its own.")
        except Problem as problem:
            raise CommandError(str(problem)) from None
