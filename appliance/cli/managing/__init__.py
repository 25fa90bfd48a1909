"""The commands of admins about people: who there is, in which groups, and what each may use."""

from appliance.cli.managing.allowances import allowances
from appliance.cli.managing.groups import groups
from appliance.cli.managing.people import people

__all__ = ["allowances", "groups", "people"]
