"""People, groups, what each may use, the hosts, the audit log: the commands of admins; and one's own tokens and
keys."""

from appliance.cli.managing.allowances import allowances
from appliance.cli.managing.groups import groups
from appliance.cli.managing.guests import guests
from appliance.cli.managing.nodes import nodes
from appliance.cli.managing.notices import notice
from appliance.cli.managing.people import people
from appliance.cli.managing.reservations import reservations, reserve
from appliance.cli.managing.ssh import keys, ssh_config
from appliance.cli.managing.tokens import audit, tokens
