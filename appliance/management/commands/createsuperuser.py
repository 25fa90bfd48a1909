"""manage.py createsuperuser: Django's own, by the rules for names that hold everywhere else."""

from django.contrib.auth.management.commands import createsuperuser

from web.errors import Problem
from web.people import accounts


class Command(createsuperuser.Command):
    def _validate_username(self, username: str, verbose_field_name: str, database: str) -> str | None:
        """Why an account may not have this name; None if it may."""
        if fault := accounts.fault_of_name(username):
            return fault
        try:
            accounts.require_new(username)
        except Problem as problem:
            return problem.message
        return None
