"""Which GPUs a container gets that names none: of this host, by what its scheduler has promised; of a Swarm's hosts, by
what they declare and have reserved. Among its hosts a Swarm chooses."""

from collections.abc import Mapping, Sequence
from math import inf

from scheduler.core import reserved
from scheduler.core.state import State
from scheduler.engines.placer import Host
from web.errors import Problem
from web.services.placement.policies import Card, choose_cards, in_service
from web.sizes import format_size
from web.spec import constraints


def choose(
    state: State, count: int, quota: int, named: Sequence[str] = (), owner: str = "", lasts: float | None = None
) -> list[str]:
    """`count` GPUs that could ever give `quota`, by the rule of `choose_cards`; what is reserved for others than the
    owner at one moment of the next `lasts` seconds is promised to them. `lasts`: its time limit, if it has one. Raises
    its Problem.

    Or those that were `named`, where all of them are in service.
    """
    if named:
        in_service([state.gpus[gpu] for gpu in named if gpu in state.gpus], len(named))
        return list(named)
    cards = list(state.gpus.values())
    promised = {
        card.uuid: reserved.spoken_for(state, card.uuid, owner, inf if lasts is None else lasts) for card in cards
    }
    return choose_cards(cards, promised, quota, count)


def choose_host(
    hosts: Sequence[Host], size: int, count: int, wanted: Mapping[str, Sequence[int]]
) -> tuple[str, list[int]]:
    """The only host, or "" for any, and the numbers of the cards to reserve. Raises Problem for what can never be.

    Among hosts the placer chooses; but it counts each card by its number, and cannot be asked for one or the other. So
    the number is chosen here: those of the host that has most to give now. `wanted`: cards that were asked for by UUID,
    by the name of their host.
    """
    there = [host for host in hosts if host.there]
    if not there:  # also for some seconds after a Swarm has a new leader, which has to hear of each node first
        raise Problem(
            "node_away",
            "No node of this Swarm takes containers just now: each is away, or drained. Try again shortly; "
            "`docker node ls` shows them.",
            503,
        )
    if not any(host.declared for host in hosts):
        raise Problem(
            "no_generic_resources",
            "No node of this Swarm declares GPU memory as a generic resource: nothing can be reserved. On each node, "
            "`gpushare doctor` writes the lines for /etc/docker/daemon.json; then restart its Docker.",
            409,
        )
    if wanted:
        return _named(hosts, size, wanted)
    able = [host for host in hosts if sum(declared >= size for declared in host.declared.values()) >= count]
    if not able:
        raise _too_large(hosts, size, count)
    if not (now := [host for host in able if host.there]):
        raise _away(able, f"could give {format_size(size)}{f' on {count} cards' * (count > 1)}")
    chosen = {host.name: freest(host, size, count) for host in now}
    best = max(now, key=lambda host: min(_left(host, card) for card in chosen[host.name]))
    return "", chosen[best.name]


def as_asked(hosts: Sequence[Host], asks: Sequence[str]) -> list[Host]:
    """Those of which all constraints are so. Raises Problem if there are hosts and none of them is, or is there."""
    found = [host for host in hosts if constraints.hold(asks, host.name, host.labels)]
    if hosts and not found:
        message = f"No node of this Swarm is as asked: {', '.join(asks)}. `docker node update --label-add` labels one."
        raise Problem("no_such_node", message, 400, "constraints")
    if any(host.there for host in hosts) and not any(host.there for host in found):
        raise _away(found, "is as asked" if len(found) == 1 else "are as asked")
    return found


def _away(hosts: Sequence[Host], what: str) -> Problem:
    """`what` only these hosts are or could do."""
    names = ", ".join(sorted(f'"{host.name}"' for host in hosts)[:5])
    message = (
        f"Only {names} {what}, and {'it is' if len(hosts) == 1 else 'they are'} away, or drained, just now. Try again "
        "when that is over; `docker node ls` shows it."
    )
    return Problem("node_away", message, 503)


def has_room(host: Host, size: int, count: int) -> bool:
    return sum(_left(host, card) >= size for card in host.declared) >= count


def _left(host: Host, card: int) -> int:
    return host.declared[card] - host.reserved.get(card, 0)


def _named(hosts: Sequence[Host], size: int, wanted: Mapping[str, Sequence[int]]) -> tuple[str, list[int]]:
    if len(wanted) > 1:
        raise Problem("gpus_apart", "These GPUs are in several nodes: a container runs on one.", 400, "gpus")
    ((name, cards),) = wanted.items()
    host = next((each for each in hosts if each.name == name and each.there), None)
    if host is None:
        raise Problem("node_away", f'The node "{name}" with that GPU is not there, or is drained.', 503, "gpus")
    if any(host.declared.get(card, 0) < size for card in cards):
        raise _too_large([Host(name, {card: host.declared.get(card, 0) for card in cards}, {})], size, len(cards))
    return name, sorted(cards)


def freest(host: Host, size: int, count: int) -> list[int]:
    """The numbers of the cards that have the most left, of those that could ever give `size`."""
    cards = [Card(str(number), declared, declared) for number, declared in host.declared.items()]
    reserved = {str(number): size for number, size in host.reserved.items()}
    return sorted(map(int, choose_cards(cards, reserved, size, count)))


def _too_large(hosts: Sequence[Host], size: int, count: int) -> Problem:
    most = max((declared for host in hosts for declared in host.declared.values()), default=0)
    what = "any node declares" if count == 1 else f"any node declares on {count} cards"
    message = f"{format_size(size)} is more than {what}: the most on one card is {format_size(most)}."
    return Problem("over_capacity", message, 400, "gpu_memory")
