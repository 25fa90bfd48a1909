"""The commands of admins: people, who is in which groups, what each may use; and the hosts."""

from appliance.cli.managing.allowances import allowances
from appliance.cli.managing.groups import groups
from appliance.cli.managing.nodes import nodes
from appliance.cli.managing.people import people

__all__ = ["allowances", "groups", "nodes", "people"]
