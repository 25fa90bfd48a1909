"""Who is on which card, and what each has had of it up to now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import floor, inf, isfinite

from scheduler.core.turns.books import Card, Phase, Seat, Taker, Turns
from scheduler.core.turns.shares import divide
from scheduler.core.turns.vocabulary import Mode

SHORTEST = 0.05  # seconds of a turn, in the mean: where more take turns than a cycle has room for, it is longer
SAVED = 0.2  # seconds that anybody can save while it rests: a burst, and a look at it
LIGHT = 0.25  # who was seen to compute for less than this part of the time needs no turn
MOST_OWED = 30.0  # seconds; the shell gives up a lock long before


class Table:
    """A copy of the turns that can be changed. `account` brings cards up to date."""

    def __init__(self, turns: Turns, now: float) -> None:
        self.rules = turns.rules
        self.now = max(turns.now, now) if isfinite(now) else turns.now
        self.cards = dict(turns.cards)
        self.takers = dict(turns.takers)

    def done(self) -> Turns:
        return Turns(self.rules, self.cards, self.takers, self.now)

    # ---- who is where ----

    def put(self, taker: Taker) -> None:
        self.takers[taker.id] = taker

    def change(self, name: str, gpu: str, seat: Seat) -> None:
        taker = self.takers[name]
        self.put(replace(taker, seats={**taker.seats, gpu: seat}))

    def linked(self, gpus: Iterable[str]) -> list[str]:
        """These cards and all that share a container with them, directly or by others."""
        found: dict[str, None] = {}
        todo = [gpu for gpu in gpus if gpu in self.cards]
        while todo:
            gpu = todo.pop()
            if gpu not in found:
                found[gpu] = None
                for name in self.cards[gpu].members:
                    todo += [other for other in self.takers[name].seats if other not in found]
        return list(found)

    def among(self, gpus: Iterable[str]) -> list[str]:
        """Who is a member of one of these cards."""
        return list(dict.fromkeys(name for gpu in gpus for name in self.cards[gpu].members))

    def active(self, gpu: str) -> list[Taker]:
        its = (self.takers[name] for name in self.cards[gpu].members)
        return [taker for taker in its if taker.active and gpu in taker.where]

    def queue(self, gpu: str) -> list[Taker]:
        return [taker for taker in self.active(gpu) if taker.queues]

    def turned(self, taker: Taker) -> list[str]:
        """The cards for which it needs a turn."""
        return [gpu for gpu in taker.seats if gpu in taker.where and self.cards[gpu].mode is Mode.TURNS]

    def alone(self, taker: Taker, gpu: str) -> bool:
        """Whether nobody else takes turns there."""
        for name in self.cards[gpu].members:
            if name != taker.id and (other := self.takers[name]).queues and gpu in other.where:
                return False
        return True

    def reigning(self, taker: Taker, gpu: str) -> bool:
        card = self.cards[gpu]
        return card.reigns == taker.id and not card.open

    def ruled(self, gpu: str) -> str | None:
        """Whose priority keeps all others of the card waiting now."""
        card = self.cards[gpu]
        return card.reigns if card.reigns and not card.open and self.takers[card.reigns].called else None

    def quantum(self, taker: Taker, gpu: str) -> float:
        """Seconds of a card that it is given in each round."""
        card = self.cards[gpu]
        return max(self.rules.cycle, SHORTEST * len(card.shares)) * card.shares[taker.id]

    def light(self, taker: Taker) -> bool:
        """Whether it was seen to need so little that it needs no turn: less than half of its share, too."""
        shares = (self.cards[gpu].shares.get(taker.id, 1.0) / 2 for gpu in self.turned(taker))
        return taker.part < min([LIGHT, *shares])

    def saved(self, taker: Taker, gpu: str) -> float:
        """Seconds that it can save at most while it rests."""
        return max(self.quantum(taker, gpu), SAVED)

    def allowance(self, taker: Taker) -> float:
        """Seconds of a cycle that its limit lets it compute."""
        return inf if taker.limit is None else self.rules.cycle * taker.limit / 100

    # ---- the time since the last event ----

    def account(self, gpus: Iterable[str]) -> None:
        spent: dict[str, float] = {}
        for gpu in gpus:
            card = self.cards[gpu]
            if (seconds := self.now - card.at) <= 0:
                continue
            its = [taker for name in card.members if gpu in (taker := self.takers[name]).where]
            its = [taker for taker in its if taker.active or taker.runs]
            had = self.divided(its, card, seconds)
            queued = seconds - sum(had[taker.id] for taker in its if taker.beside)
            queue = sum(taker.queues for taker in its)
            reigned = card.reigned + seconds if self.ruled(gpu) and queue > 1 else card.reigned
            seats = {
                taker.id: self._accounted(taker, gpu, seconds, had[taker.id], queued, queue - taker.queues > 0)
                for taker in its
            }
            self.cards[gpu] = replace(card, at=self.now, reigned=reigned)
            for name, seat in seats.items():
                self.change(name, gpu, seat)
                if card.mode is Mode.TURNS:
                    spent[name] = max(had[name], spent.get(name, 0.0))
        for name in self.among(gpus):
            if self.takers[name].limit is not None:
                self._spend(self.takers[name], spent.get(name, 0.0))

    def divided(self, its: list[Taker], card: Card, seconds: float) -> dict[str, float]:
        """A card's time, in equal parts to those that compute; who does so for a part of it has no more than that."""
        light = {t.id: 0.0 if t.told else t.part for t in its if t.beside or card.mode is Mode.SHARED}
        parts = {t.id: light.get(t.id, 1.0) * t.runs for t in its}
        return {name: seconds * part / max(1.0, sum(parts.values())) for name, part in parts.items()}

    def _accounted(self, taker: Taker, gpu: str, seconds: float, had: float, queued: float, owed: bool) -> Seat:
        """`queued`: seconds of the card that those in its queue had to divide. `owed`: somebody else was in it."""
        seat, card, ruler = taker.seats[gpu], self.cards[gpu], self.ruled(gpu)
        if card.mode is Mode.SHARED:
            return replace(seat, had=seat.had + had, due=seat.due + had)
        share = card.shares.get(taker.id, 0.0) if taker.active else 0.0
        if taker.beside:
            earned = share * seconds if self.light(taker) else 0.0
            credit = min(seat.credit + earned, max(seat.credit, self.saved(taker, gpu))) - had
            return replace(seat, credit=max(credit, -MOST_OWED), had=seat.had + had, due=seat.due + had)
        if ruler:
            share = min(1.0, (taker.limit or 100) / 100) if ruler == taker.id else 0.0
        charged = had if owed and ruler != taker.id else 0.0
        waits = taker.active and taker.phase in (Phase.STOPPED, Phase.STARTING)
        return replace(
            seat,
            credit=max(seat.credit - charged, -MOST_OWED),
            had=seat.had + had,
            due=seat.due + share * queued,
            held_back=seat.held_back + (seconds if waits else 0.0),
        )

    def charge(self, taker: Taker, gpus: Iterable[str], had: float, seconds: float) -> None:
        """It computed `had` of these last seconds without a turn: those in the queue had so much less."""
        for gpu in gpus:
            card, seat = self.cards[gpu], self.takers[taker.id].seats[gpu]
            credit = max(seat.credit - had, -MOST_OWED) if card.mode is Mode.TURNS else seat.credit
            self.change(taker.id, gpu, replace(seat, credit=credit, had=seat.had + had, due=seat.due + had))
            for other in self.queue(gpu):
                seat, less = other.seats[gpu], min(had * self._ran(other, card, seconds), other.seats[gpu].had)
                credit = seat.credit if self.alone(other, gpu) else self.capped(other, gpu, seat.credit + less)
                due = max(0.0, seat.due - had * card.shares.get(other.id, 0.0))
                self.change(other.id, gpu, replace(seat, credit=credit, had=seat.had - less, due=due))
        if taker.limit is not None:
            self.put(replace(self.takers[taker.id], left=self.takers[taker.id].left - had))

    def capped(self, taker: Taker, gpu: str, credit: float) -> float:
        return min(credit, 1.5 * self.quantum(taker, gpu))

    def _ran(self, taker: Taker, card: Card, seconds: float) -> float:
        """The part of these last seconds in which it had the turn."""
        called = next((t for name in card.members if (t := self.takers[name]).called), None)
        lately = 0.0
        if called is not None and called.phase is Phase.GOING and seconds > 0:
            lately = min(1.0, (self.now - called.began) / seconds)
        if called is not None and taker.id == called.id:
            return lately
        return 1.0 - lately if taker.id == card.before else 0.0

    def _spend(self, taker: Taker, seconds: float) -> None:
        """A cycle of its own has ended, or more: what it has of its limit is given anew, less what it owes."""
        left, refills, allowance = taker.left - seconds, taker.refills, self.allowance(taker)
        if self.now >= refills:
            cycles = floor((self.now - refills) / self.rules.cycle) + 1
            most = 1.5 * allowance if taker.active else allowance  # who was stopped early has the rest later
            left, refills = min(left + cycles * allowance, most), refills + cycles * self.rules.cycle
        if (left, refills) != (taker.left, taker.refills):
            self.put(replace(taker, left=left, refills=refills))

    def share(self, gpus: Iterable[str]) -> None:
        """Divides the cards. Who is on several has as much of each as of the one where its part is smallest."""
        active = {gpu: self.active(gpu) for gpu in gpus}
        most = {taker.id: taker.limit / 100 for its in active.values() for taker in its if taker.limit is not None}
        shares = {gpu: _shares(its, most) for gpu, its in active.items()}
        wide = {t.id: t for its in active.values() for t in its if len(self.turned(t)) > 1}
        if wide:
            most |= {name: min(shares[gpu][name] for gpu in self.turned(taker)) for name, taker in wide.items()}
            shares = {gpu: _shares(its, most) for gpu, its in active.items()}
        for gpu, its in shares.items():
            if its != self.cards[gpu].shares:
                self.cards[gpu] = replace(self.cards[gpu], shares=its)


def _shares(its: list[Taker], most: Mapping[str, float]) -> dict[str, float]:
    """Of those in the queue among themselves; of those beside it as if they were in it."""
    shares = divide({taker.id: taker.weight for taker in its}, most)
    return shares | divide({taker.id: taker.weight for taker in its if not taker.beside}, most)
