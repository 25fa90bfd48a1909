"""One thing that needs somebody."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from web.models import Container, Gpu
from web.people.roles import Deed, Rights


class Kind(StrEnum):
    """What stops everybody first; a cause before its consequences."""

    DATABASE_AWAY = "database_away"
    SCHEDULER_AWAY = "scheduler_away"
    ENGINE_AWAY = "engine_away"
    GPU_GONE = "gpu_gone"
    DRAINED = "drained"
    RESERVED_SHORT = "reserved_short"
    NEARLY_FULL = "nearly_full"
    CLOCK_WRONG = "clock_wrong"
    OTHER_RELEASE = "other_release"
    AUDIT_BROKEN = "audit_broken"
    XID = "xid"
    ECC = "ecc"
    HOT = "hot"
    UNEXPLAINED = "unexplained"
    UNCAPPED = "uncapped"
    NOT_RESTORED = "not_restored"
    HOLDING = "holding"
    ABOVE_SHARE = "above_share"
    WAITING = "waiting"
    SWAPPED_WAITING = "swapped_waiting"
    NO_TURNS = "no_turns"
    FAILING = "failing"
    FOREIGN = "foreign"
    ANNOUNCED = "announced"


@dataclass(frozen=True, slots=True)
class Item:
    """`person` is whose it is: a user name, or empty where it is the host's. `node` is the name of the one that it is
    about; empty: of none, or of all. `acts`: what can be done about it. `because`: the key of the item that causes it.

    An act is the name of an action on `container`: free, resume, kill; `first` puts it at the head of the queue, and
    `again` launches the same once more. `command` helps on the host, where nothing here can reach: for a shell.
    """

    key: str
    kind: Kind
    person: str
    message: str
    since: datetime | None = None
    container: Container | None = None
    gpu: Gpu | None = None
    acts: tuple[str, ...] = ()
    command: str = ""
    node: str = ""
    because: str = ""

    @property
    def place(self) -> int | None:
        """The key of the node that its container or GPU is on."""
        thing = self.container or self.gpu
        return thing.node_id if thing else None

    def acts_of(self, rights: Rights) -> list[str]:
        """What of `acts` somebody with these rights may do."""
        if self.container is None or not rights.steers(self.container):
            return []
        return [act for act in self.acts if act != "first" or rights.may(Deed.ORDER_QUEUE)]


def about(
    container: Container, kind: Kind, message: str, *acts: str, since: datetime | None = None, because: str = ""
) -> Item:
    owner = container.owner.get_username()
    return Item(f"{kind}:{container.pk}", kind, owner, message, since, container, acts=acts, because=because)
