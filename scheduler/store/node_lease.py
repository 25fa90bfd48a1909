"""One scheduler a node name: a lease in the database, with the scheduler's sign of life as its heartbeat.

Who has the name is a boot of a kernel and a GPUSHARE_HOME on it. So after a `kill -9` the next scheduler of the same
home goes on at once (the lock in that home says that the last one has gone), while one on another host, or in another
home, is refused as long as the first gives signs of life, and for LAPSES after it fell silent. All times are the
database's.

A scheduler that was silent for longer and finds its name taken writes nothing any more and takes no command: each
write, and each look at the commands, asks whether the name is still its own. While the database is away nobody renews
and nobody takes; once it is back, the name is whose it was until somebody else takes it. A scheduler that has started
without the database takes the name when it is back, or ends.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from scheduler.store.database import Here
from web.models import Node
from web.models.hosts import LAPSES, lapsed


class NameTaken(Exception):
    """Another scheduler works under this node's name; the message says so."""


def holder(home: Path) -> str:
    """Who we are: this boot of this host, and the folder GPUSHARE_HOME on it, whatever it is called."""
    place = os.stat(home)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {place.st_dev}:{place.st_ino}"


def take(name: str, holder: str, fields: Mapping[str, Any]) -> Node:
    """The node of this name, ours from now on, with these fields. Raises NameTaken. Within a transaction."""
    node, _ = Node.objects.get_or_create(name=name)  # that of a host that has joined is there: it may make none
    ours = Q(holder__in=("", holder)) | lapsed()
    here = Node.objects.filter(pk=node.pk)
    if not here.filter(ours).update(**fields, started_at=Now(), holder=holder):
        raise NameTaken(
            f'Another scheduler works under the node name "{name}", and gave a sign of life moments ago. Two nodes '
            "need two names: set GPUSHARE_NODE here. If this host takes the other's place, stop the other one first, "
            f"or wait {LAPSES.seconds} seconds after it has died."
        )
    if here.exclude(removed_at=None).exists():  # nobody removes it from here on, until this is committed
        here.update(removed_at=None)  # not otherwise: a host that has joined may not write it
    return node


def held(here: Here) -> QuerySet[Node]:
    """Our node, while it is ours: its name, in the database that gets what our journal holds.

    Another database that knows this home has a node of the same name and holder, perhaps of the same key; its journal
    is another one. So one rule decides what is written, and what is set aside.
    """
    ours = Node.objects.filter(pk=here.node, holder=here.holder)
    return ours.filter(outbox=here.journal) if here.journal else ours


def require(here: Here) -> None:
    """Keeps the name for the holder until the end of this transaction. Raises NameTaken if it is not ours."""
    if not held(here).select_for_update(no_key=True).values_list("pk", flat=True):
        raise NameTaken(
            "This scheduler was silent for so long that another one took its node's name, or an admin removed the "
            "node, or the database is another one now. The scheduler ends, and writes nothing of what it has not "
            "written yet; its containers go on."
        )


def give_back(here: Here) -> None:
    held(here).update(holder="")
