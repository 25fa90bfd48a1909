"""`manage.py doctor`: what this host needs, looked at one by one. Nothing is changed.

A check is a function that yields what it found. `finding.py` has the words, `host.py` what the kernel and the folders
have to say, `cards.py` GPUs and Docker, `plugin.py` Docker's volume plugin, `swarm.py` its Swarm, `services.py` what
answers over a socket: port, proxy, database, directories.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from appliance.doctor import cards, host, services, swarm
from appliance.doctor.finding import Finding, wrong
from appliance.doctor.plugin import plugin

Check = Callable[[], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    host.versions,
    host.home,
    host.sockets,
    host.logs,
    host.rights,
    host.disk,
    host.clock,
    host.descriptors,
    host.pid_namespace,
    host.cgroups,
    host.ports,
    host.huge_pages,
    cards.driver,
    cards.docker,
    cards.gpu_access,
    plugin,
    swarm.swarm,
    services.database,
    services.redis,
    services.scheduler,
    services.port,
    services.proxy,
    services.ldap,
    services.oidc,
)


def examine(checks: tuple[Check, ...] = CHECKS) -> Iterator[Finding]:
    """All findings. A check that fails itself is one, too: nobody is to take silence for health."""
    for check in checks:
        try:
            for found in check():
                yield replace(found, check=check.__name__)
        except Exception as error:
            failed = f"The check itself failed: {type(error).__name__}: {error}"
            found = wrong(failed, "The state of this item is unknown.", "Report it with this line.")
            yield replace(found, check=check.__name__)
