"""What is true of turns whenever nothing is left to decide. The tests and the explorer check it after every event."""

from collections.abc import Iterator

from scheduler.core.turns.books import Phase, Taker, Turns
from scheduler.core.turns.dealing import Deal
from scheduler.core.turns.table import MOST_OWED, SAVED, SHORTEST
from scheduler.core.turns.vocabulary import Mode


def violations(turns: Turns) -> list[str]:
    """One sentence for each thing that is wrong; empty for all turns that can come about."""
    deal = Deal(turns, turns.now)
    return [*_cards(deal), *_takers(deal), *_waits(deal)]


def _cards(deal: Deal) -> Iterator[str]:
    for gpu, card in deal.cards.items():
        its = deal.active(gpu) if card.mode is Mode.TURNS else []
        called = [taker.id for taker in its if taker.called]
        if len(called) > 1:
            yield f"{called} have the turn on {gpu}"
        loose = [t.id for t in its if t.queues and not t.called and t.phase is Phase.GOING]
        if loose:
            yield f"{loose} compute on {gpu} without a turn"
        most = 1.5 * max(deal.rules.cycle, SHORTEST * len(card.purses), SAVED)
        for person, purse in card.purses.items():
            if not -MOST_OWED <= purse.credit <= most + 1e-6:
                yield f"{person} has a credit of {purse.credit} s on {gpu}"
            if (purse.rests is None) is not (person in deal.people(gpu)):
                yield f"{person} rests on {gpu} since {purse.rests}"
        idle = [
            t.id
            for t in its
            if t.queues and not (called or t.yields or deal.spent(t) or _waits_elsewhere(deal, t, gpu))
        ]
        if idle:
            yield f"nobody has the turn on {gpu}, and {idle} could"


def _waits_elsewhere(deal: Deal, taker: Taker, gpu: str) -> bool:
    """It needs another card, which somebody has, or on which others are to have their turns first."""
    return any(len(deal.queue(other)) > 1 for other in deal.turned(taker) if other != gpu)


def _takers(deal: Deal) -> Iterator[str]:
    for taker in deal.takers.values():
        if taker.called and not (taker.queues and deal.turned(taker)):
            yield f"{taker.id} has a turn and needs none"
        if taker.beside and (taker.phase is not Phase.GOING or taker.barred):
            yield f"{taker.id} is beside the queue and {taker.phase}"
        if taker.phase is Phase.STOPPED and (taker.barred or not deal.turned(taker)):
            yield f"{taker.id} is stopped for nothing"
        if not taker.where <= taker.seats.keys():
            yield f"{taker.id} computes where it is not"
        for gpu, seat in taker.seats.items():
            most = 1.5 * max(deal.rules.cycle, SHORTEST * len(deal.cards[gpu].members), SAVED)
            if not -MOST_OWED <= seat.credit <= most + 1e-6:
                yield f"{taker.id} has a credit of {seat.credit} s on {gpu}"
            if taker.id not in deal.cards[gpu].members:
                yield f"{gpu} does not know {taker.id}"


def _waits(deal: Deal) -> Iterator[str]:
    """Who is stopped waits for an answer, or for a time."""
    stopped = [taker.id for taker in deal.takers.values() if taker.phase is Phase.STOPPED]
    awaited = any(taker.phase in (Phase.STOPPING, Phase.STARTING) for taker in deal.takers.values())
    if stopped and not awaited and deal.next_tick() is None:
        yield f"{stopped} wait for nothing"
