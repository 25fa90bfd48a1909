"""What is known of nodes, as the policies ask for it: from the records, in a few queries."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from django.conf import settings
from django.db.models import Sum
from django.utils import timezone

from web.errors import Problem
from web.models import Claim, Container, Gpu, Node
from web.services.booked import reservations
from web.services.placement.policies import Card, Choice, Holder, Policy, Site, Wish, choose_node
from web.spec import constraints, quotas

AUTO = "auto"
SETTLES = timedelta(minutes=1)  # from its start: what a program has not asked for by then it may not need soon


def policy() -> Policy:
    chosen = settings.GPUSHARE_PLACEMENT
    return Policy.SPREAD if chosen == AUTO else Policy(chosen)


def tells_a_swarm() -> bool:
    """Whether a Swarm is given the choice, by a constraint; else it chooses by itself."""
    return bool(settings.GPUSHARE_PLACEMENT != AUTO)


def require_as_asked(nodes: Sequence[Node], asks: Sequence[str]) -> list[Node]:
    """Those of which all constraints are so. Problem if there is none, with what to look at."""
    if found := [node for node in nodes if constraints.hold(asks, node.name, node.labels)]:
        return found
    never = [each for each in asks if not any(constraints.hold([each], node.name, node.labels) for node in nodes)]
    what = f'"{never[0]}" is so' if never else "All of it together is so"
    of = f'not of "{nodes[0].name}"' if len(nodes) == 1 else "of no node"
    raise Problem("no_such_node", f"{what} {of}: `gpushare nodes` shows their labels.", 400, "constraints")


def sites(nodes: Sequence[Node], cards: Mapping[int, Sequence[Gpu]], wish: Wish) -> list[Site]:
    """`cards`: those that may be used, by node."""
    promises = promised(wish)
    asked = under_way([node.pk for node in nodes])
    there = [card for node in nodes for card in cards.get(node.pk, ())]
    soon = _soon(nodes, there) if policy() is Policy.SOONEST else {}
    return [
        Site(
            node.name,
            takes=node.takes_launches,
            labels=node.labels,
            under_way=asked[node.pk],
            cards=tuple(_card(card, promises, soon.get(card.pk, (0, ()))) for card in cards.get(node.pk, ())),
        )
        for node in nodes
    ]


def among(names: Mapping[str, Mapping[str, str]], wish: Wish) -> Choice | None:
    """Of the nodes of these names, of which a Swarm has said that they have room, and which labels they have there."""
    nodes = list(Node.objects.listed().filter(name__in=names))
    cards: dict[int, list[Gpu]] = defaultdict(list)
    for card in Gpu.objects.filter(present=True, node__in=nodes):
        cards[card.node_id].append(card)
    known = [replace(site, labels=names[site.name]) for site in sites(nodes, cards, wish)]
    return choose_node(policy(), known, wish)


def promised(wish: Wish) -> dict[str, int]:
    """The quotas of live containers, in bytes by GPU, and what is reserved for others than the owner while it lasts."""
    claims = Claim.objects.filter(container__finished_at=None).order_by()
    found = Counter(dict(claims.values_list("gpu__uuid").annotate(Sum("quota"))))
    found.update(reservations.of_others(wish.owner, wish.lasts))
    return found


def under_way(nodes: Collection[int]) -> defaultdict[int, int]:
    """What launches ask for that have no promise yet, in bytes by node."""
    found: defaultdict[int, int] = defaultdict(int)
    waiting = Container.objects.live().filter(claims=None, started_at=None, node__in=nodes).order_by()
    for node, gpu_memory, count in waiting.values_list("node", "gpu_memory", "gpu_count"):
        found[node or 0] += quotas.asked(gpu_memory) * count
    return found


def _card(card: Gpu, promises: Mapping[str, int], soon: tuple[int, Sequence[Holder]]) -> Card:
    spoken_for, holders = soon
    return Card(
        card.uuid,
        capacity=card.capacity,
        most=card.most,
        drained=card.drained,
        promised=promises.get(card.uuid, 0),
        free=card.free + card.idle - spoken_for,
        holders=tuple(holders),
    )


def _soon(nodes: Sequence[Node], cards: Sequence[Gpu]) -> dict[int, tuple[int, list[Holder]]]:
    """By GPU: bytes that others will take of what is free, and whose memory comes back."""
    now, rates = timezone.now(), {node.pk: node.rates(first=True)["out"] for node in nodes}
    moves = {node.pk for node in nodes if not node.cannot_swap and settings.GPUSHARE_GIVE_WAY != "off"}
    home = {card.pk: card.node_id for card in cards}
    found: dict[int, tuple[int, list[Holder]]] = {}
    live = Claim.objects.filter(gpu__in=home, container__finished_at=None).select_related("container").order_by()
    for claim in live.defer("processes", "container__environment", "container__command"):
        holder, (spoken_for, holders) = claim.container, found.get(claim.gpu_id, (0, []))
        young = holder.started_at is None or now - holder.started_at < SETTLES
        found[claim.gpu_id] = spoken_for + (max(0, claim.quota - claim.used) if young else claim.waiting), holders
        size = claim.quota if holder.guaranteed else claim.used
        if not size or holder.swap:
            continue
        stays = (
            holder.guaranteed or holder.cannot_move or holder.paused_at is not None
        )  # as core/moves/preemption.py's may_go
        gives_way = holder.give_way and holder.idle_since is not None and not stays
        if gives_way and home[claim.gpu_id] in moves:
            holders.append(Holder(holder.name, size, size / rates[home[claim.gpu_id]], idle=True))
        elif holder.ends_by is not None:
            holders.append(Holder(holder.name, size, max(0.0, (holder.ends_by - now).total_seconds())))
    return found
