"""One event being handled: who takes turns, who is called, and what is asked of whom."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil, inf

from scheduler.core.turns.books import ROOT, Phase, Reign, Ring, Taker, Turns
from scheduler.core.turns.table import Table, across, rings
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
            self.change(taker.id, gpu, replace(seat, credit=min(credit, self.saved(gpu, taker.owner, taker.id))))

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
            if not self.cards[gpu].reigns and not any(taker.priority for taker in self.active(gpu)):
                continue
            for ring in dict.fromkeys([ROOT, *self.people(gpu), *self.cards[gpu].reigns]):
                self._enthrone(gpu, ring)
        for name in its:
            if (taker := self.takers[name]).active and (taker.beside or taker.called):
                self._place(taker)
        for name in its:
            taker = self.takers[name]
            if taker.called and (not taker.active or not self.turned(taker) or self._over(taker)):
                self._end(taker)
        for _ in range(3 * (len(gpus) + len(its))):  # each time somebody is called, or can be one of the next two times
            if not self._call(gpus, its):
                break

    def _place(self, taker: Taker) -> None:
        """Beside the queue or in it: who needs little is beside it, until it has used up what it had saved."""
        cards = self.turned(taker)
        saved = all(left > EPSILON for gpu in cards for _, left in self._leeway(taker, gpu, beside=True))
        ruled = any(self.ruled(gpu, ring) not in (None, member) for gpu in cards for ring, member in rings(taker))
        stays = saved and not self.spent(taker) and not ruled
        alone = all(self.alone(taker, gpu) for gpu in cards)
        reigns = not self.light(taker) and any(
            self.reigning(taker, gpu, ring) for gpu in cards for ring, _ in rings(taker)
        )
        if taker.beside and (not stays or reigns):
            self.put(replace(taker, beside=False, since=self.now))
            self.share(self.linked(cards))
            for gpu in cards:
                self._begin(taker, gpu)
        elif taker.called and taker.phase is Phase.GOING and self.light(taker) and stays and not alone:
            self.put(replace(taker, called=False, beside=True))
            self.share(self.linked(cards))

    def _begin(self, taker: Taker, gpu: str) -> None:
        """Where one other was in the queue, it was alone, and nothing counted: a round begins."""
        queues = self.queues(gpu)
        others: list[tuple[Ring, str]] = [(taker.owner, name) for name in queues[taker.owner] if name != taker.id]
        if not others:
            others = [(ROOT, person) for person in queues if person != taker.owner]
        if len(others) == 1:
            ring, member = others[0]
            credit = max(self.credit(gpu, ring, member), self.quantum(gpu, ring, member))
            self.set_credit(gpu, ring, member, credit)

    def _leeway(self, taker: Taker, gpu: str, beside: bool) -> Iterator[tuple[Ring, float]]:
        """Seconds that it may still compute before it has to be stopped, in each ring in which others wait for it.

        A person whose other containers are in the queue may draw their next quantum in advance for one beside it.
        """
        for ring, member in rings(taker):
            others, left = self.competes(gpu, ring, member), self.credit(gpu, ring, member) - taker.drain
            if beside and ring is ROOT and self.competes(gpu, taker.owner, taker.id):
                left += self.saved(gpu, ROOT, member)
            if beside and ring is not ROOT:
                others = others or not self.competes(gpu, ROOT, taker.owner)
            if others and (beside or not self.reigning(taker, gpu, ring)):
                yield ring, left

    def _enthrone(self, gpu: str, ring: Ring) -> None:
        """Whose priority is above all others' of a ring; once it has reigned for long, all others have a turn."""
        highest: dict[str, int] = {}
        for taker in self.active(gpu) if ring is ROOT else map(self.takers.__getitem__, self.people(gpu).get(ring, ())):
            if not self.spent(taker) and (taker.queues or not self.light(taker)):
                member, priority = (taker.owner, across(taker)) if ring is ROOT else (taker.id, taker.priority)
                highest[member] = max(priority, highest.get(member, priority))
        its = sorted(highest, key=lambda member: highest[member], reverse=True)
        first = its[0] if len(its) > 1 and highest[its[0]] > highest[its[1]] else None
        reign = replace(self.cards[gpu].reigns.get(ring, Reign()), ruler=first)
        if ends := first is not None and not reign.open and reign.seconds >= self.rules.longest_priority - EPSILON:
            for name in self.queues(gpu).get(first, ()) if ring is ROOT else (first,):
                self.put(
                    replace(self.takers[name], called=False, since=self.now)
                )  # it was charged nothing to give back
            reign = replace(reign, open=True)
        self._set_reign(gpu, ring, reign)
        if ends:
            self._round(gpu, ring, 1)

    def _set_reign(self, gpu: str, ring: Ring, reign: Reign) -> None:
        card, none = self.cards[gpu], Reign()
        if reign != card.reigns.get(ring, none):
            others = {other: its for other, its in card.reigns.items() if other != ring}
            self.cards[gpu] = replace(card, reigns=others if reign == none else {**others, ring: reign})

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
            and any(left <= EPSILON for gpu in self.turned(taker) for _, left in self._leeway(taker, gpu, beside=False))
        )

    def _ready(self, taker: Taker, gpu: str) -> bool:
        """Whether it may have a turn in this round."""
        return all(self._missing(taker, gpu, ring) <= EPSILON for ring in (ROOT, taker.owner))

    def _missing(self, taker: Taker, gpu: str, ring: Ring) -> float:
        """Seconds of credit: a turn begins with half a quantum; a person's with half of one of their containers'."""
        member = taker.owner if ring is ROOT else taker.id
        if not self.competes(gpu, ring, member) or self.reigning(taker, gpu, ring):
            return 0.0
        least = self.quantum(gpu, ring, member)
        if ring is ROOT:
            least = min(self.quantum(gpu, member, name) for name in self.queues(gpu).get(member) or (taker.id,))
        return least / 2 - self.credit(gpu, ring, member)

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

    def _rank(self, taker: Taker) -> tuple[bool, bool, bool, float, bool, str]:
        """Who reigns over all; who is in the queue; who needs several cards; who has been without a turn for longest.

        Who reigns among its person's containers goes before them, in the place of the first.
        """
        cards, since, among, reigns = self.turned(taker), taker.since, False, False
        if any(self.cards[gpu].reigns for gpu in cards):
            among = any(self.reigning(taker, gpu, taker.owner) for gpu in cards)
            reigns = any(self._reigns_alone(taker, gpu) for gpu in cards)
        if among and not reigns:
            since = min([since, *(self.takers[name].since for gpu in cards for name in self.people(gpu)[taker.owner])])
        return not reigns, taker.beside, len(cards) < 2, since, not among, taker.id

    def _reigns_alone(self, taker: Taker, gpu: str) -> bool:
        contested = [ring for ring, member in rings(taker) if self.competes(gpu, ring, member)]
        return bool(contested) and all(self.reigning(taker, gpu, ring) for ring in contested)

    def _reigns_over(self, taker: Taker, other: Taker) -> bool:
        """Whether it has a priority, on any card, that counts between these two."""
        ring = ROOT if taker.owner != other.owner else taker.owner
        return any(self.reigning(taker, gpu, ring) for gpu in self.turned(taker))

    def _yields(self, holder: Taker, taker: Taker) -> bool:
        """Whether a turn is cut short: by a priority; and for one that needs several cards, if it is of one card."""
        if self._reigns_over(holder, taker):
            return False
        return self._reigns_over(taker, holder) or len(self.turned(taker)) > 1 == len(self.turned(holder))

    def _renew(self, gpu: str, held: dict[str, str], reserved: set[str], patient: bool) -> bool:
        """A new round on a card that nobody holds, if there is somebody for whom that is all that is missing.

        `patient`: not while somebody could still have its turn of this round. A round of a person's containers, if that
        person has credit left; else one of all people.
        """
        able = [taker for taker in self.queue(gpu) if self._may(taker) and self._free(taker, gpu, held, reserved)]
        lacking = [taker for taker in able if not self._ready(taker, gpu)]
        if not lacking or (patient and len(lacking) < len(able)):
            return False
        rich = [taker for taker in lacking if self._missing(taker, gpu, ROOT) <= EPSILON]
        if not rich:
            self._renew_ring(gpu, ROOT, lacking)
        for person in dict.fromkeys(taker.owner for taker in rich):
            self._renew_ring(gpu, person, [taker for taker in rich if taker.owner == person])
        return True

    def _renew_ring(self, gpu: str, ring: Ring, lacking: list[Taker]) -> None:
        reign = self.cards[gpu].reigns.get(ring)
        if reign is not None and reign.open:
            self._set_reign(gpu, ring, replace(reign, open=False, seconds=0.0))
            return
        rounds = inf
        for taker in lacking:
            quantum = self.quantum(gpu, ring, taker.owner if ring is ROOT else taker.id)
            rounds = min(rounds, self._missing(taker, gpu, ring) / quantum)
        self._round(gpu, ring, max(1, ceil(rounds - EPSILON)))

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

    def _round(self, gpu: str, ring: Ring, rounds: int) -> None:
        reign = self.cards[gpu].reigns.get(ring)
        if reign is not None and reign.ruler is None:
            self._set_reign(gpu, ring, replace(reign, seconds=0.0))
        for member in self.queues(gpu) if ring is ROOT else self.queues(gpu)[ring]:
            credit = self.credit(gpu, ring, member) + rounds * self.quantum(gpu, ring, member)
            self.set_credit(gpu, ring, member, self.capped(gpu, ring, member, credit))

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
            for ring, reign in card.reigns.items():
                if self.delays(gpu, ring):
                    times.append(self.now + self.rules.longest_priority - reign.seconds)
        return min(times, default=None)

    def _runs_out(self, taker: Taker, cards: list[str]) -> Iterable[float]:
        """When its credit or its limit is used up."""
        most = 0.0
        for gpu in cards:
            its = [other for name in self.cards[gpu].members if gpu in (other := self.takers[name]).where]
            rates = self.divided(its, self.cards[gpu], 1.0)
            most = max(most, rates[taker.id])
            for ring, left in self._leeway(taker, gpu, taker.beside):
                rate = rates[taker.id]
                if ring is ROOT:
                    rate = sum(rates[t.id] for t in its if t.owner == taker.owner) - self.earning(gpu, taker.owner)
                elif taker.beside and self.light(taker):
                    rate -= self.cards[gpu].shares[taker.id]
                yield self.now + left / rate if rate > 0 else inf
        if taker.limit is not None and most > 0:
            yield self.now + (taker.left - taker.drain) / most
