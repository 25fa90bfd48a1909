"""Whose a card is: its node's, until that starts without it or is removed, and nobody there has a quota on it.

So a card that was taken out of one host and put into another is the other's once both have started, in whichever
order, or once an admin has removed the first. Its samples and its history go with it. That is all that a node with a
role of its own has to say about others' cards (web/services/joining/functions.py). One with the appliance's own rights
takes those of a node that is away, too: so does a host that was given another name.
"""

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from django.conf import settings
from django.db.models import Exists, OuterRef, Q

from scheduler.gpus import Card
from scheduler.store.node_lease import NameTaken
from web.models import Claim, Gpu, Node
from web.models.functions import ask
from web.models.hosts import lapsed


class CardTaken(NameTaken):
    """A card of this host is another node's, for which a scheduler ends as for a name; the message says what to do."""


def make_known(node: Node, cards: Sequence[Card], contexts: Mapping[str, int]) -> list[Gpu]:
    """This node's cards, all of them its own from now on. Within a transaction; see `take`."""
    return [Gpu.objects.update_or_create(uuid=card.uuid, defaults=_fields(node, card, contexts))[0] for card in cards]


def _fields(node: Node, card: Card, contexts: Mapping[str, int]) -> dict[str, Any]:
    return {
        "node": node,
        "index": card.index,
        "name": card.name,
        "present": True,
        "simulated": card.simulated,
        "total": card.total,
        "capacity": card.capacity(0),
        "most": card.capacity(0),
        **({"context": contexts[card.uuid]} if card.uuid in contexts else {}),
    }


def take(node: Node, uuids: Sequence[str]) -> str:
    """Says which cards this node has, and takes those that were another's; why it may not have one, or empty."""
    Gpu.objects.filter(node=node).exclude(uuid__in=uuids).update(present=False)
    for gpu in Gpu.objects.filter(uuid__in=uuids).exclude(node=node).select_related("node").order_by("index"):
        if not _is_given_up(gpu, node):
            other = gpu.node.name
            return (
                f'{gpu.uuid} is in this host, and a card of the node "{other}": that one\'s, until it starts without '
                f'it. If the card was moved here, start the scheduler of "{other}", and end the containers there that '
                f"still have a quota on it; or, if that host is gone, `gpushare nodes {quote(other)} --remove`. Then "
                "start this one."
            )
    return ""


def _is_given_up(gpu: Gpu, node: Node) -> bool:
    """Whether it was, and is this node's now."""
    if settings.GPUSHARE_AUDIT_KEY:
        ((taken,),) = ask("SELECT gpushare_take_card(%s)", gpu.uuid)
        return bool(taken)
    promised = Claim.objects.filter(gpu=OuterRef("pk"), container__finished_at=None)
    free = (Q(present=False) & ~Exists(promised)) | Q(node__holder="") | lapsed("node__")
    return bool(Gpu.objects.filter(free, pk=gpu.pk).update(node=node))
