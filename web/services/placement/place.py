"""Where a launch goes: to the node asked for, to that of the GPUs that it names, or to the one that is best.

Which that is, GPUSHARE_PLACEMENT says (policies.py). Where a node speaks for a Swarm, a launch that
names no node is that one's to give to the Swarm. The scheduler of that node then decides; a second choice is not made.
With one node there is nothing to choose.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from web.errors import Problem, conflict
from web.models import Gpu, Node
from web.people.allowances import Allowed
from web.services.issuing import require_scheduler
from web.services.placement import sites
from web.services.placement.policies import Wish, able_cards, choose_cards, choose_node, in_service
from web.spec import quotas


@dataclass(frozen=True, slots=True)
class Place:
    """`gpus` by UUID; none if the node's scheduler may choose. `quota`: bytes, over all its GPUs.

    `reason` is empty if there was no choice of nodes. `claims`: bytes by GPU, where they are promised at once.
    `by_swarm`: `node` gives it to a Swarm, which chooses where it runs.
    """

    node: Node
    gpus: list[str]
    quota: int
    reason: str = ""
    claims: Mapping[str, int] = field(default_factory=dict)
    by_swarm: bool = False


def place(
    limits: Allowed,
    gpus: int | list[str],
    gpu_memory: int | None,
    wanted: str = "",
    here: Node | None = None,
    *,
    asks: Sequence[str] = (),
    launches: bool = False,
    owner: str = "",
    lasts: float | None = None,
) -> Place:
    """`gpus` are a count or UUIDs, `gpu_memory` the quota on each in bytes, if it was given; `wanted` names a node.

    `here`: where it starts anyway, drained or not, because that is none of our choice. `asks`: constraints on the node.
    `launches`: it is to be given to a Swarm, if there is one and no node is named: it honours the constraints then.
    `owner`, `lasts`: what is reserved for others within its time limit (seconds; None: a day) counts as promised to
    them. Of `limits` only the GPUs count here. Raises a Problem for what can never be, or no node takes now.
    """
    if here is None:
        require_scheduler()
    nodes = {node.pk: node for node in ([here] if here else Node.objects.listed())}
    cards = [gpu for gpu in Gpu.objects.filter(present=True) if gpu.node_id in nodes]
    asked, count = _asked(gpus, {card.uuid: card for card in cards})
    node = _named(nodes.values(), wanted) if wanted else None
    if asked:
        node = _only_node_of(asked, nodes, node)
    placer = _placer(nodes.values()) if launches and not wanted else None
    asks = () if here or placer else asks
    asked_for = [node] if node else list(nodes.values())
    asked_for = sites.require_as_asked(asked_for, asks) if asks else asked_for
    allowed = asked or [card for card in cards if limits.gpus is None or card.uuid in limits.gpus]
    there: dict[int, list[Gpu]] = defaultdict(list)
    for card in allowed:
        there[card.node_id].append(card)
    quota = quotas.asked(gpu_memory)
    fitting = _fitting({each.pk: there[each.pk] for each in asked_for}, quota, count)
    taking = [here] if here else _taking([nodes[pk] for pk in fitting])
    chosen, reason, wish = taking[0], "", Wish(quota, count, tuple(asks), owner, lasts)
    if len(taking) > 1:
        best = choose_node(sites.policy(), sites.sites(taking, fitting, wish), wish)
        if best:  # else one that took launches a moment ago does not any more, and is asked all the same
            chosen, reason = next(each for each in taking if each.name == best.node), best.reason
    elif len(nodes) > 1:
        reason = _without_choice(chosen, nodes, fitting, named=bool(wanted), by_gpu=bool(asked), asks=asks)
    cards_of_it = [card.uuid for card in asked]
    if limits.gpus is not None and not asked:
        cards_of_it = choose_cards(fitting[chosen.pk], sites.promised(wish), quota, count)
    if placer is not None:
        chosen, reason = placer, "Swarm chooses the node."
    return Place(chosen, cards_of_it, quota * count, reason, by_swarm=placer is not None)


def _asked(gpus: int | list[str], present: Mapping[str, Gpu]) -> tuple[list[Gpu], int]:
    """The cards that were asked for by UUID, and how many are wanted."""
    if isinstance(gpus, int):
        return [], gpus
    if unknown := [uuid for uuid in gpus if uuid not in present]:
        raise Problem("unknown_gpu", f"There is no GPU {unknown[0][:64]}.", 400, "gpus")
    return [present[uuid] for uuid in gpus], len(gpus)


def _named(nodes: Iterable[Node], name: str) -> Node:
    for node in nodes:
        if node.name == name:
            return node
    known = ", ".join(sorted(node.name for node in nodes)[:10])
    raise Problem("unknown_node", f'There is no node "{name[:64]}". There are: {known}.', 400, "node")


def _only_node_of(asked: Sequence[Gpu], nodes: Mapping[int, Node], wanted: Node | None) -> Node:
    """A container runs on one node, and so do its GPUs."""
    homes = {card.node_id: card for card in asked}
    if len(homes) > 1:
        one, other = list(homes.values())[:2]
        message = (
            f"{one.uuid} is in {nodes[one.node_id].name} and {other.uuid} in {nodes[other.node_id].name}: a container "
            "runs on one node, with GPUs of that node."
        )
        raise Problem("gpus_apart", message, 400, "gpus")
    home = nodes[asked[0].node_id]
    if wanted is not None and wanted != home:
        raise Problem("gpus_apart", f"{asked[0].uuid} is in {home.name} and not in {wanted.name}.", 400, "gpus")
    return home


def _fitting(there: Mapping[int, list[Gpu]], quota: int, count: int) -> dict[int, list[Gpu]]:
    """The nodes that could ever give that, each with its cards. Else the Problem of the one that comes closest."""
    fitting, closest = {}, None
    cards_at_most = max(map(len, there.values()), default=0)
    for pk, cards in sorted(there.items(), key=lambda each: (len(each[1]) >= count, _most(each[1]))):
        try:
            if count > len(cards):
                raise Problem("too_few_gpus", _too_few(count, cards_at_most, len(there)), 400, "gpus")
            in_service(able_cards(cards, quota, count), count)
        except Problem as problem:
            closest = problem
        else:
            fitting[pk] = cards
    if not fitting:
        raise closest or Problem("too_few_gpus", _too_few(count, 0, 1), 400, "gpus")
    return fitting


def _most(cards: Sequence[Gpu]) -> int:
    return max((card.most for card in cards), default=0)


def _too_few(count: int, most: int, nodes: int) -> str:
    if nodes > 1:
        return f"{count} GPUs were asked for; the most that one node has is {most}."
    return f"{count} GPUs were asked for; there {'is' if most == 1 else 'are'} {most}."


def _taking(nodes: Sequence[Node]) -> list[Node]:
    """Those that take launches now. Problem if there is none."""
    alive = [node for node in nodes if node.is_alive()]
    if not alive:
        require_scheduler(nodes[0] if len(nodes) == 1 else None)
        message = "The nodes that could take this are away. Nothing was done; try again shortly."
        raise Problem("scheduler_away", message, 503)
    if taking := [node for node in alive if node.takes_launches]:
        return taking
    names = ", ".join(f'"{node.name}"' for node in alive[:5])
    being = "is being drained: it takes" if len(alive) == 1 else "are being drained: they take"
    raise conflict(f"{names} {being} no new launches. An admin ends that with `gpushare nodes NAME --undrain`.", "node",
                   code="node_draining")  # fmt: skip


def _placer(nodes: Iterable[Node]) -> Node | None:
    """The node that gives launches to a Swarm, if there is one, drained or not. Problem while it is away."""
    speaking = sorted((node for node in nodes if node.placer), key=lambda node: node.name)
    if not speaking:
        return None
    if alive := next((node for node in speaking if node.is_alive()), None):
        return alive
    names = ", ".join(f'"{node.name}"' for node in speaking[:3])
    raise Problem(
        "scheduler_away",
        f"Launches cannot be given to the Swarm now: the scheduler of {names} is away. Nothing was done; try again "
        "shortly, or name a node (--node), past the Swarm.",
        503,
    )


def _without_choice(
    node: Node,
    nodes: Mapping[int, Node],
    fitting: Mapping[int, object],
    *,
    named: bool,
    by_gpu: bool,
    asks: Sequence[str],
) -> str:
    if named or by_gpu:
        return f"{node.name} was asked for{'' if named else ', by its GPUs'}."
    others = f"{'is as asked and ' * bool(asks)}can ever give that" if len(fitting) == 1 else "takes launches now"
    return f"{node.name} is the only one of {len(nodes)} nodes that {others}."
