"""One event being handled: who takes turns, who is called, and what is asked of whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil, inf

from scheduler.core.turns.books import Phase, Taker, Turns
from scheduler.core.turns.table import Table
from scheduler.core.turns.vocabulary import Effect, Go, Mode, Stop

QUIET = 0.005  # seconds: who is stopped within that had nothing on the card; with work, it takes longer
LEAST = 0.02  # seconds that a turn lasts before it is ended, whatever is owed

EPSILON = 1e-6


class Deal(Table):
    """The turns while one event is taken in. `account` first, then the change itself, then `settle` and `ask`."""

    def __init__(self, turns: Turns, now: float) -> None:
        super().__init__(turns, now)
        self.effects: list[Effect] = []

    # ---- changes ----

    def wake(self, taker: Taker, gpus: frozenset[str]) -> None:
        """It computes on these cards. Where it is new, it has what it could have had while it rested, of one round."""
        new, gone = gpus - taker.where, taker.where - gpus
        if new:
            taker = replace(taker, called=False, beside=True)
        if not new and not gone:
            self.put(taker)
            return
        self.put(replace(self.rest(taker, gone), where=gpus))
        self.share(self.linked(taker.seats))
        for gpu in new:
            taker = self.takers[taker.id]
            seat = taker.seats[gpu]
            credit = seat.credit + (self.now - seat.rests) * self.cards[gpu].shares[taker.id]
            self.change(taker.id, gpu, replace(seat, credit=min(credit, self.saved(taker, gpu))))

    def rest(self, taker: Taker, gpus: frozenset[str]) -> Taker:
        """It does not compute on these cards any more."""
        seats = {gpu: replace(seat, rests=self.now) if gpu in gpus else seat for gpu, seat in taker.seats.items()}
        return replace(taker, seats=seats, where=taker.where - gpus)

    # ---- what follows ----

    def settle(self, gpus: list[str]) -> None:
        """Ends turns, calls who is next, and asks for what that takes."""
        self.share(gpus)
        its = self.among(gpus)
        gpus = [gpu for gpu in gpus if self.cards[gpu].mode is Mode.TURNS]
        for gpu in gpus:
            self._enthrone(gpu)
        for name in its:
            if (taker := self.takers[name]).active and (taker.beside or taker.called):
                self._place(taker)
        for name in its:
            taker = self.takers[name]
            if taker.called and (not taker.active or not self.turned(taker) or self._over(taker)):
                self._end(taker)
        for _ in range(2 * (len(gpus) + len(its))):  # each time somebody is called, or can be the next time
            if not self._call(gpus, its):
                break

    def _place(self, taker: Taker) -> None:
        """Beside the queue or in it: who needs little is beside it, until it has used up what it had saved."""
        cards = self.turned(taker)
        saved = all(taker.seats[gpu].credit > taker.drain + EPSILON for gpu in cards) and not self.spent(taker)
        stays = saved and not any(self.ruled(gpu) not in (None, taker.id) for gpu in cards)
        alone = all(self.alone(taker, gpu) for gpu in cards)
        if taker.beside and (not stays or (not self.light(taker) and any(self.reigning(taker, gpu) for gpu in cards))):
            self.put(replace(taker, beside=False, since=self.now))
            self.share(self.linked(cards))
            for gpu in cards:
                others = [other for other in self.queue(gpu) if other.id != taker.id]
                if len(others) == 1:  # it was alone, and nothing counted: a round begins
                    seat = others[0].seats[gpu]
                    self.change(others[0].id, gpu, replace(seat, credit=max(seat.credit, self.quantum(others[0], gpu))))
        elif taker.called and taker.phase is Phase.GOING and self.light(taker) and stays and not alone:
            self.put(replace(taker, called=False, beside=True))
            self.share(self.linked(cards))

    def _enthrone(self, gpu: str) -> None:
        """Whose priority is above all others' here; once it has reigned for long, all others have a turn."""
        card = self.cards[gpu]
        its = [t for t in self.active(gpu) if not self.spent(t) and (t.queues or not self.light(t))]
        its.sort(key=lambda t: t.priority, reverse=True)
        first = its[0].id if len(its) > 1 and its[0].priority > its[1].priority else None
        if first != card.reigns:
            self.cards[gpu] = card = replace(card, reigns=first)
        if first and not card.open and card.reigned >= self.rules.longest_priority - EPSILON:
            self._end(self.takers[first])
            self.cards[gpu] = replace(card, open=True)
            self._round(gpu, 1)

    def spent(self, taker: Taker) -> bool:
        """Whether its limit forbids it a turn now."""
        if taker.limit is None:
            return False
        if taker.called or taker.beside:
            return taker.left <= taker.drain + EPSILON and self._lasted(taker)
        return taker.left < self.allowance(taker) / 2 - EPSILON

    def _lasted(self, taker: Taker) -> bool:
        return not taker.called or (taker.phase is Phase.GOING and self.now - taker.began >= LEAST - EPSILON)

    def _over(self, taker: Taker) -> bool:
        """Whether its turn is over, draining included, on one of its cards."""
        return self.spent(taker) or (
            self._lasted(taker)
            and any(
                taker.seats[gpu].credit <= taker.drain + EPSILON
                for gpu in self.turned(taker)
                if not self.alone(taker, gpu) and not self.reigning(taker, gpu)
            )
        )

    def _ready(self, taker: Taker, gpu: str) -> bool:
        """Whether it may have a turn in this round."""
        if self.reigning(taker, gpu) or self.alone(taker, gpu):
            return True
        return taker.seats[gpu].credit >= self.quantum(taker, gpu) / 2 - EPSILON

    def _end(self, taker: Taker) -> None:
        for gpu in self.turned(taker):
            self.cards[gpu] = replace(self.cards[gpu], before=taker.id)
        self.put(replace(taker, called=False, since=self.now))

    def _call(self, gpus: list[str], its: list[str]) -> bool:
        """Calls all that can be called; gives a new round where nobody can. Returns whether there was one."""
        held = {gpu: name for name in its if self.takers[name].called for gpu in self.turned(self.takers[name])}
        able = [t for name in its if (t := self.takers[name]).active and not t.called and self._may(t)]
        reserved: set[str] = set()
        for taker in sorted(able, key=self._rank):
            cards = self.turned(taker)
            if not cards or not all(self._ready(taker, gpu) for gpu in cards):
                continue
            before = {held[gpu] for gpu in cards if gpu in held}
            if taker.beside and before:
                continue
            wide = len(cards) > 1
            if (wide and reserved & set(cards)) or not all(self._yields(self.takers[name], taker) for name in before):
                reserved |= set(cards) if wide else set()
                continue
            for name in before:
                held = {gpu: holder for gpu, holder in held.items() if holder != name}
                self._end(self.takers[name])
            self.put(replace(taker, called=True, beside=False, began=self.now))
            held |= dict.fromkeys(cards, taker.id)
        free = [gpu for gpu in gpus if gpu not in held]
        renewed = [self._renew(gpu, held, reserved, patient=True) for gpu in free]
        # Two that need the same cards, each ready on another of them, would wait for each other.
        return any(renewed) or any(self._renew(gpu, held, reserved, patient=False) for gpu in free)

    def _may(self, taker: Taker) -> bool:
        return not taker.yields and not self.spent(taker)

    def _rank(self, taker: Taker) -> tuple[bool, bool, bool, float, str]:
        """Who reigns; who is in the queue; who needs several cards; who has been without a turn for longest."""
        cards = self.turned(taker)
        reigns = any(self.reigning(taker, gpu) for gpu in cards)
        return not reigns, taker.beside, len(cards) < 2, taker.since, taker.id

    def _yields(self, holder: Taker, taker: Taker) -> bool:
        """Whether a turn is cut short: by a priority; and for one that needs several cards, if it is of one card."""
        if any(self.reigning(holder, gpu) for gpu in self.turned(holder)):
            return False
        cards = self.turned(taker)
        return any(self.reigning(taker, gpu) for gpu in cards) or len(cards) > 1 == len(self.turned(holder))

    def _renew(self, gpu: str, held: dict[str, str], reserved: set[str], patient: bool) -> bool:
        """A new round on a card that nobody holds, if there is somebody for whom that is all that is missing.

        `patient`: not while somebody could still have its turn of this round.
        """
        able = [taker for taker in self.queue(gpu) if self._may(taker) and self._free(taker, gpu, held, reserved)]
        lacking = [taker for taker in able if not self._ready(taker, gpu)]
        if not lacking or (patient and len(lacking) < len(able)):
            return False
        if self.cards[gpu].open:
            self.cards[gpu] = replace(self.cards[gpu], open=False, reigned=0.0)
            return True
        missing = (0.5 - taker.seats[gpu].credit / self.quantum(taker, gpu) for taker in lacking)
        self._round(gpu, max(1, ceil(min(missing) - EPSILON)))
        return True

    def _free(self, taker: Taker, gpu: str, held: dict[str, str], reserved: set[str]) -> bool:
        """Whether it could have its other cards."""
        others = [other for other in self.turned(taker) if other != gpu]
        if others and gpu in reserved:
            return False
        return all(
            other not in reserved
            and (other not in held or (self._ready(taker, other) and self._yields(self.takers[held[other]], taker)))
            for other in others
        )

    def _round(self, gpu: str, rounds: int) -> None:
        if self.cards[gpu].reigns is None:
            self.cards[gpu] = replace(self.cards[gpu], reigned=0.0)
        for taker in self.queue(gpu):
            seat, quantum = taker.seats[gpu], self.quantum(taker, gpu)
            self.change(taker.id, gpu, replace(seat, credit=self.capped(taker, gpu, seat.credit + rounds * quantum)))

    def ask(self, gpus: Iterable[str]) -> None:
        its = self.among(gpus)
        for name in its:
            taker = self.takers[name]
            if taker.phase is Phase.GOING and taker.queues and not taker.called and self.turned(taker):
                self.put(replace(taker, phase=Phase.STOPPING, began=self.now, part=1.0))
                self.effects.append(Stop(name))
        for name in its:
            taker = self.takers[name]
            if taker.phase is Phase.STOPPED and (self._let_go(taker) or (taker.called and self._clear(taker))):
                self.put(replace(taker, phase=Phase.STARTING))
                self.effects.append(Go(name))

    def _let_go(self, taker: Taker) -> bool:
        return taker.barred or not self.turned(taker)

    def _clear(self, taker: Taker) -> bool:
        """Whether all that had a turn before it on its cards are stopped."""
        for gpu in self.turned(taker):
            for name in self.cards[gpu].members:
                other = self.takers[name]
                if name == taker.id or gpu not in other.where:
                    continue
                if other.phase is Phase.STOPPING or (other.phase is Phase.STARTING and other.active):
                    return False
        return True

    # ---- when to be asked again ----

    def next_tick(self) -> float | None:
        times: list[float] = []
        for taker in self.takers.values():
            counts = taker.active and (taker.called or taker.beside or taker.limit is not None)
            if not counts or not (cards := self.turned(taker)):
                continue
            if taker.limit is not None and not taker.called and self.spent(taker):
                times.append(taker.refills)
            if taker.phase is Phase.GOING and (taker.called or taker.beside):
                earliest = taker.began + LEAST if taker.called else self.now
                times += [max(earliest, at) for at in self._runs_out(taker, cards)]
        for gpu, card in self.cards.items():
            if self.ruled(gpu) and len(self.queue(gpu)) > 1:
                times.append(self.now + self.rules.longest_priority - card.reigned)
        return min(times, default=None)

    def _runs_out(self, taker: Taker, cards: list[str]) -> Iterable[float]:
        """When its credit or its limit is used up."""
        rates = []
        for gpu in cards:
            its = [other for name in self.cards[gpu].members if gpu in (other := self.takers[name]).where]
            rates.append(rate := self.divided(its, self.cards[gpu], 1.0)[taker.id])
            left = taker.seats[gpu].credit - taker.drain
            if taker.beside:
                rate -= self.cards[gpu].shares[taker.id] if self.light(taker) else 0.0
                yield self.now + left / rate if rate > 0 else inf
            elif taker.called and not self.alone(taker, gpu) and not self.reigning(taker, gpu):
                yield self.now + left / rate
        if taker.limit is not None and max(rates) > 0:
            yield self.now + (taker.left - taker.drain) / max(rates)
