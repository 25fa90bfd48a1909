"""Which node a launch goes to and why, in a sentence, and which of its GPUs: pure functions of what is known.

A policy says which of several nodes it is:

    spread    where most is promised to nobody, also by reservations within its time: all nodes fill evenly
    pack      where least is promised to nobody, of those that have room for it: large gaps stay whole
    soonest   where its whole quota is there first: what is free, then what idle holders give way with, then by the
              ends that time limits set

Of a node those cards are looked at that its scheduler would give (`choose_cards`, the rule of both sides), and of these
the one that has least. The node's scheduler decides what happens then. Of equals the first is taken. Sizes are bytes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Protocol, TypeVar

from web.errors import Problem, conflict
from web.sizes import format_size
from web.spec import constraints
from web.times import span

NAMED = 3  # containers in a reason


class Policy(StrEnum):
    SPREAD = "spread"
    PACK = "pack"
    SOONEST = "soonest"


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody whose `size` bytes of a card come back: `after` seconds at the latest, by its time limit.

    Or who is `idle` and gives way to whoever waits: then that is how long moving them takes.
    """

    name: str
    size: int
    after: float
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """`capacity` is what containers may hold together now, `most` what that is without foreign memory.

    `drained`: nothing new is placed on it. `promised` are quotas of live containers, and what is reserved for others.
    `free` is what could be had at once: it is less than nothing where more is being asked for already.
    """

    uuid: str
    capacity: int
    most: int
    promised: int = 0
    free: int = 0
    holders: tuple[Holder, ...] = ()
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """A node. `takes`: it is alive and not drained. `under_way`: what launches there ask for and have no promise of."""

    name: str
    takes: bool
    cards: tuple[Card, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    under_way: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """`quota` on each of `count` cards of one node, for which `constraints` hold. `owner`: whose it is to be, and
    `lasts`: its time limit in seconds, if it has one."""

    quota: int
    count: int = 1
    constraints: tuple[str, ...] = ()
    owner: str = ""
    lasts: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a node has for this: `room` is promised to nobody (on the card that has least), `free` can be had at once.

    `seconds` until the whole quota is there, inf if nobody can know, and whose memory is waited for until then.
    """

    name: str
    room: int
    free: int
    seconds: float
    awaits: tuple[Holder, ...]


class AnyCard(Protocol):
    """A GPU: of the records, of the scheduler's state, or of a Swarm's host. Bytes, as of `Card`."""

    @property
    def uuid(self) -> str: ...
    @property
    def capacity(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def drained(self) -> bool: ...


C = TypeVar("C", bound=AnyCard)


def able_cards(cards: Sequence[AnyCard], quota: int, count: int) -> list[AnyCard]:
    """Those that could ever give `quota`. Problem `over_capacity`, with the figures, if they are fewer than `count`."""
    found = _able(cards, quota)
    if len(found) < count:
        most = max((card.most for card in cards), default=0)
        what = "it" if count == 1 else f"all {count} GPUs"
        raise Problem(
            "over_capacity",
            f"{format_size(quota)} is more than {what} can ever give: the most is {format_size(most)}.",
            400,
            "gpu_memory",
        )
    return found


def _able(cards: Iterable[C], quota: int) -> list[C]:
    return [card for card in cards if quota <= card.most]


def in_service(cards: Sequence[C], count: int) -> list[C]:
    """Those on which something new may be placed. Problem `gpu_drained` if they are fewer than `count`."""
    found = [card for card in cards if not card.drained]
    if len(found) < count <= len(cards):
        drained = next(card.uuid for card in cards if card.drained)
        which = f"GPU {drained} is" if len(cards) - len(found) == 1 else f"{len(cards) - len(found)} GPUs are"
        raise conflict(
            f"{which} out of service, and takes no new containers. `gpushare gpus` shows why; an admin ends that with "
            "`gpushare gpus GPU --undrain`.",
            "gpus",
            code="gpu_drained",
        )
    return found


def choose_cards(cards: Sequence[AnyCard], promised: Mapping[str, int], quota: int, count: int) -> list[str]:
    """The `count` GPUs with the most memory that nobody was promised, of those that could ever give `quota`.

    `promised` are the quotas of live containers by GPU. What is left may be negative: quotas together may exceed a
    card, that is the point of suspending. Of equals the first in `cards` is taken. Problem as above.
    """
    able = in_service(able_cards(cards, quota, count), count)
    ranked = sorted(able, key=lambda card: promised.get(card.uuid, 0) - card.capacity)
    return [card.uuid for card in ranked[:count]]


def choose_node(policy: Policy, sites: Sequence[Site], wish: Wish) -> Choice | None:
    """None if no node can take it. The reason names the figures, and is empty if no other could."""
    offers = [_offer(site, wish) for site in sites if fits(site, wish)]
    if not offers:
        return None
    key, reason = _POLICIES[policy]
    best, *others = sorted(offers, key=lambda offer: (*key(offer, wish), offer.name))
    return Choice(best.name, reason(best, others[0], wish) if others else "")


def fits(site: Site, wish: Wish) -> bool:
    """Whether it takes launches, is as it is asked to be, and could ever give that."""
    enough = sum(not card.drained for card in _able(site.cards, wish.quota)) >= wish.count
    return site.takes and enough and constraints.hold(wish.constraints, site.name, site.labels)


def _offer(site: Site, wish: Wish) -> _Offer:
    promised = {card.uuid: card.promised for card in site.cards}
    chosen = choose_cards(site.cards, promised, wish.quota, wish.count)
    cards = [card for card in site.cards if card.uuid in chosen]
    seconds, awaits = max((_wait(card, wish.quota + site.under_way) for card in cards), key=lambda wait: wait[0])
    return _Offer(
        site.name,
        room=min(card.capacity - card.promised for card in cards) - site.under_way,
        free=min(card.free for card in cards) - site.under_way,
        seconds=seconds,
        awaits=awaits,
    )


def _wait(card: Card, needed: int) -> tuple[float, tuple[Holder, ...]]:
    """Seconds until so much is there, and whose memory is waited for: first that of the idle, then that of who ends."""
    there, after, awaits = card.free, 0.0, list[Holder]()
    for holder in sorted(card.holders, key=lambda each: (not each.idle, each.after, each.name)):
        if there >= needed:
            break
        there += holder.size
        # The idle give way one after the other; of ends the last one counts.
        after = after + holder.after if holder.idle else max(after, holder.after)
        awaits.append(holder)
    return (after if there >= needed else inf), tuple(awaits)


# ---- the policies: an order of offers, best first, and why the first of two is the better one ----


def _spread(offer: _Offer, wish: Wish) -> tuple[float, ...]:
    return (-offer.room,)


def _spread_reason(best: _Offer, other: _Offer, wish: Wish) -> str:
    return f"{best.name} has the most room: {_room(best)} on a GPU; next is {other.name}, where {_room(other)}."


def _pack(offer: _Offer, wish: Wish) -> tuple[float, ...]:
    return (0, offer.room) if offer.room >= wish.quota else (1, -offer.room)


def _pack_reason(best: _Offer, other: _Offer, wish: Wish) -> str:
    if best.room < wish.quota:
        return f"No node has {format_size(wish.quota)} that is not promised. {_spread_reason(best, other, wish)}"
    after = f"next is {other.name}, where {_room(other)}" if other.room >= wish.quota else "no other has room for it"
    return f"{best.name} is the fullest that has room for it: {_room(best)} on a GPU; {after}."


def _soonest(offer: _Offer, wish: Wish) -> tuple[float, ...]:
    return (offer.seconds, -offer.room)


def _soonest_reason(best: _Offer, other: _Offer, wish: Wish) -> str:
    if best.seconds == inf:
        return f"No forecast says where {format_size(wish.quota)} is free first. {_spread_reason(best, other, wish)}"
    return f"{best.name} has it first: {_when(best)}; next is {other.name}: {_when(other)}."


_POLICIES: dict[Policy, tuple[Callable[[_Offer, Wish], tuple[float, ...]], Callable[[_Offer, _Offer, Wish], str]]] = {
    Policy.SPREAD: (_spread, _spread_reason),
    Policy.PACK: (_pack, _pack_reason),
    Policy.SOONEST: (_soonest, _soonest_reason),
}


def _room(offer: _Offer) -> str:
    if offer.room < 0:
        return f"{format_size(-offer.room)} more is promised than it has"
    return f"{format_size(offer.room)} is not promised"


def _when(offer: _Offer) -> str:
    free = f"{format_size(max(0, offer.free))} free"
    if offer.seconds == inf:
        return f"{free}, and no known end is enough"
    if not offer.awaits:
        return f"{free}, {_room(offer)}"
    names = [f"{each.name} ({format_size(each.size)}{', idle' * each.idle})" for each in offer.awaits[:NAMED]]
    more = len(offer.awaits) - NAMED
    rest = f"{', '.join(names)} and {more} more" if more > 0 else ", ".join(names)
    return f"{free}, the rest within {_about(offer.seconds)} from {rest}"


def _about(seconds: float) -> str:
    """It is an estimate: from 100 s on in whole minutes."""
    return span(max(1, round(seconds)) if seconds < 100 else 60 * round(seconds / 60))
