"""What needs somebody now: who waits for long, who keeps them waiting, what nobody accounts for, what is broken.

Every item is a function of what the database says at one moment: it is there as long as that is so, and nothing has to
be raised or cleared. Its `key` stays the same for as long, so that it is notified once. A database
that does not answer is an item as well, then the only one.
"""

from dataclasses import replace
from datetime import datetime

from django.db import InterfaceError, OperationalError
from django.utils import timezone

from web.models import Node
from web.services.attention import cards, containers, host
from web.services.attention.item import Item, Kind

__all__ = ["Item", "Kind", "items", "recorded", "without_database"]


def items(now: datetime | None = None) -> list[Item]:
    """All of them, what stops everybody first."""
    try:
        return recorded(now or timezone.now())
    except (OperationalError, InterfaceError):
        return without_database()


def recorded(now: datetime) -> list[Item]:
    """The same for who has to know that the database was asked: some twelve small queries. Raises DatabaseError."""
    nodes = {node.pk: node for node in Node.objects.listed()}
    found = [*host.items(list(nodes.values()), now)]
    # Not asked anew: on a busy host the queries take as long as a sign of life counts, and then nothing would be shown.
    away = {item.node for item in found if item.kind is Kind.SCHEDULER_AWAY}
    for item in (*cards.items(now), *cards.reserved(now), *containers.items(now)):
        node = nodes.get(item.place or 0)
        # What a node that is away last said may be long ago; what has ended stays so.
        if node is None or node.name not in away or item.kind is Kind.FAILING:
            found.append(replace(item, node=node.name if node else ""))
    order = list(Kind)
    return sorted(found, key=lambda item: order.index(item.kind))


def without_database() -> list[Item]:
    """What is known where the database does not answer."""
    message = (
        "The database does not answer. The data shown is old, sign-in does not work and requests are refused. Running "
        "containers are not affected. Restart the database, or look at its log and its disk."
    )
    return [Item(Kind.DATABASE_AWAY, Kind.DATABASE_AWAY, "", message, command="systemctl status postgresql; df -h")]
