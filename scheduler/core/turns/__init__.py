"""Whose turn it is to compute: containers that compute on one card take turns by weight, all others of it locked.

`decide(turns, event)` gives the next state and what is to be done; it is pure and raises nothing. `wake(turns)` says
when it needs the next `Ticked`. The rule, and the proof of its bound, are in docs/turns.md.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any

from scheduler.core.turns.books import ROOT, Card, Phase, Rules, Seat, Standing, Taker, Turns, standing
from scheduler.core.turns.dealing import QUIET, Deal
from scheduler.core.turns.vocabulary import (
    Admitted,
    Barred,
    CardSeen,
    Changed,
    Charged,
    Computes,
    Effect,
    Event,
    Go,
    Joined,
    Left,
    Mode,
    NotStopped,
    PeopleChanged,
    Rests,
    Started,
    Stop,
    Stopped,
    Ticked,
    Yields,
)

__all__ = [
    "Admitted", "Barred", "CardSeen", "Changed", "Charged", "Computes", "Effect", "Event", "Go", "Joined", "Left",
    "Mode", "NotStopped", "PeopleChanged", "Rests", "Rules", "Standing", "Started", "Stop", "Stopped", "Ticked",
    "Turns", "Yields", "debt", "decide", "standing", "wake",
]  # fmt: skip


def decide(turns: Turns, *events: Event) -> tuple[Turns, list[Effect]]:
    """Takes in what happened. Effects are to be carried out at once; those for different containers in any order.

    Several events that are known at the same moment are best handed in together.
    """
    effects: list[Effect] = []
    for now, each in groupby(events, key=lambda event: event.now):
        together = list(each)
        deal = Deal(turns, now)
        gpus = deal.linked(gpu for event in together for gpu in _concerned(turns, event))
        deal.account(gpus)
        for event in together:
            _HANDLERS[type(event)](deal, event)
        gpus = deal.linked([*gpus, *(gpu for event in together if isinstance(event, Joined) for gpu in event.gpus)])
        deal.settle(gpus)
        deal.ask(gpus)
        turns, effects = deal.done(), effects + deal.effects
    return turns, effects


def wake(turns: Turns) -> float | None:
    """When it wants the next `Ticked`, if nothing happens before; None if it needs none."""
    return Deal(turns, turns.now).next_tick()


def debt(turns: Turns, owner: str, gpus: Iterable[str], now: float) -> float:
    """Seconds until a person whose containers have computed more than their share owes no more than a quantum.

    On these cards, if it computes nothing until then. 0 where nobody else takes turns.
    """
    most = 0.0
    for gpu in gpus:
        deal = Deal(turns, now)
        card = deal.cards.get(gpu)
        if (
            card is None
            or card.mode is not Mode.TURNS
            or owner not in card.purses
            or not deal.competes(gpu, ROOT, owner)
        ):
            continue
        new = Taker("", {gpu: Seat()}, owner=owner, where=frozenset({gpu}))
        deal.cards[gpu] = replace(card, members=(*card.members, new.id))
        deal.put(new)
        deal.share([gpu])
        owed = -deal.credit(gpu, ROOT, owner) - deal.quantum(gpu, ROOT, owner)
        most = max(most, owed / deal.part(gpu, owner))
    return most


def _concerned(turns: Turns, event: Event) -> list[str]:
    match event:
        case Ticked() | PeopleChanged():
            return list(turns.cards)
        case CardSeen() | Charged():
            return [event.gpu]
        case Joined() if event.container not in turns.takers:
            return list(event.gpus)
        case _:
            known = turns.takers.get(event.container)
            return list(known.seats) if known else []


# ---- what each event changes ------------------------------------------------------------------------------------


def _card_seen(deal: Deal, event: CardSeen) -> None:
    card = deal.cards.get(event.gpu) or Card(at=deal.now)
    deal.cards[event.gpu] = replace(card, mode=event.mode, reigns={})


def _people_changed(deal: Deal, event: PeopleChanged) -> None:
    deal.tree = event.tree


def _joined(deal: Deal, event: Joined) -> None:
    rules = Changed(event.now, event.container, event.weight, event.limit, event.priority, event.across)
    if event.container in deal.takers:
        _changed(deal, rules)
        return
    gpus = dict.fromkeys(event.gpus)
    for gpu in gpus:
        card = deal.cards.get(gpu) or Card(at=deal.now)
        deal.cards[gpu] = replace(card, members=(*card.members, event.container))
        deal.open_purse(gpu, event.owner)
    seats, refills = {gpu: Seat(rests=deal.now) for gpu in gpus}, deal.now + deal.rules.cycle
    deal.put(Taker(event.container, seats, owner=event.owner, since=deal.now, looked=deal.now, refills=refills))
    _changed(deal, rules)


def _changed(deal: Deal, event: Changed) -> None:
    if taker := deal.takers.get(event.container):
        limit = None if event.limit is None else min(100, max(1, event.limit))
        taker = replace(taker, weight=max(1, event.weight), limit=limit, priority=event.priority, across=event.across)
        deal.put(replace(taker, left=min(taker.left, deal.allowance(taker))))


def _left(deal: Deal, event: Left) -> None:
    if taker := deal.takers.get(event.container):
        deal.put(replace(taker, where=frozenset()))
        for gpu in taker.seats:
            card = deal.cards[gpu]
            deal.cards[gpu] = replace(card, members=tuple(name for name in card.members if name != taker.id))
            deal.close_purses(gpu)
        del deal.takers[taker.id]


def _barred(deal: Deal, event: Barred) -> None:
    if (taker := deal.takers.get(event.container)) and not taker.barred:
        taker = replace(taker, barred=True, called=False, beside=False, since=deal.now)
        deal.put(taker if taker.phase is Phase.STOPPING else deal.rest(taker, taker.where))


def _admitted(deal: Deal, event: Admitted) -> None:
    if (taker := deal.takers.get(event.container)) and taker.barred:
        deal.put(replace(taker, barred=False, since=deal.now))


def _computes(deal: Deal, event: Computes) -> None:
    if not (taker := deal.takers.get(event.container)):
        return
    gpus = frozenset(event.gpus or taker.seats) & taker.seats.keys()
    part = min(1.0, max(0.0, event.part))
    if event.unlocked > 0 and not taker.barred:
        deal.charge(taker, gpus, event.unlocked, event.unlocked)
        taker = deal.takers[taker.id]
    if taker.barred and taker.phase is not Phase.STOPPING:
        deal.put(replace(deal.rest(taker, taker.where - gpus), where=gpus, part=part))
    elif taker.phase is Phase.GOING:
        if event.seconds > 0:
            if not taker.called:
                seconds = min(event.seconds, deal.now - taker.looked)
                deal.charge(taker, gpus, min(1.0, max(0.0, event.had / event.seconds)) * seconds, seconds)
            taker = replace(deal.takers[taker.id], reported=True, looked=deal.now)
        since = taker.since if taker.where else deal.now
        deal.wake(replace(taker, part=part, since=since), gpus)


def _charged(deal: Deal, event: Charged) -> None:
    if event.gpu in deal.cards and event.seconds > 0:
        deal.open_purse(event.gpu, event.owner)
        deal.charge_person(event.gpu, event.owner, event.seconds, event.seconds)


def _rests(deal: Deal, event: Rests) -> None:
    if not (taker := deal.takers.get(event.container)) or not taker.where:
        return
    if taker.phase in (Phase.GOING, Phase.STOPPED) or (taker.barred and taker.phase is not Phase.STOPPING):
        deal.put(deal.rest(replace(taker, called=False, beside=False, sleeps=False, since=deal.now), taker.where))


def _yields(deal: Deal, event: Yields) -> None:
    taker = deal.takers.get(event.container)
    if not taker or not taker.called or taker.phase is not Phase.GOING or taker.sleeps:
        return
    if not all(deal.alone(taker, gpu) for gpu in deal.turned(taker)):
        deal.put(replace(taker, called=False, yields=True, since=deal.now))


def _stopped(deal: Deal, event: Stopped) -> None:
    if (taker := deal.takers.get(event.container)) and taker.phase is Phase.STOPPING:
        took = deal.now - taker.began
        rests = taker.yields and took <= QUIET
        drain = took if took > taker.drain else taker.drain if rests else (taker.drain + took) / 2
        sleeps = taker.sleeps or (taker.yields and not rests)
        taker = replace(taker, phase=Phase.STOPPED, drain=drain, yields=False, sleeps=sleeps)
        if rests or taker.barred:
            taker = replace(deal.rest(taker, taker.where), called=False)
        deal.put(taker)


def _not_stopped(deal: Deal, event: NotStopped) -> None:
    if (taker := deal.takers.get(event.container)) and taker.phase is Phase.STOPPING:
        deal.put(replace(taker, phase=Phase.GOING, barred=True, called=False, beside=False, yields=False))


def _started(deal: Deal, event: Started) -> None:
    if (taker := deal.takers.get(event.container)) and taker.phase is Phase.STARTING:
        deal.put(replace(taker, phase=Phase.GOING, began=deal.now, looked=deal.now))


def _ticked(deal: Deal, event: Ticked) -> None:
    """Time has passed: `account` has seen to it."""


_HANDLERS: dict[type[Event], Callable[[Deal, Any], None]] = {
    CardSeen: _card_seen,
    PeopleChanged: _people_changed,
    Joined: _joined,
    Changed: _changed,
    Left: _left,
    Barred: _barred,
    Admitted: _admitted,
    Computes: _computes,
    Charged: _charged,
    Rests: _rests,
    Yields: _yields,
    Stopped: _stopped,
    NotStopped: _not_stopped,
    Started: _started,
    Ticked: _ticked,
}
