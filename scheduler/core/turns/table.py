"""Who is on which card, and what each has had of it up to now."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import floor, inf, isfinite

from scheduler.core.turns.books import ROOT, Card, Phase, Purse, Ring, Seat, Taker, Turns
from scheduler.core.turns.shares import divide_by_person
from scheduler.core.turns.vocabulary import Mode

SHORTEST = 0.05  # seconds of a turn, in the mean: where more take turns than a cycle has room for, it is longer
SAVED = 0.2  # seconds that anybody can save while it rests: a burst, and a look at it
LIGHT = 0.25  # who was seen to compute for less than this part of the time needs no turn
MOST_OWED = 30.0  # seconds; the shell gives up a lock long before
FORGOTTEN = 3600.0  # seconds after which a person without containers owes nothing


class Table:
    """A copy of the turns that can be changed. `account` brings cards up to date.

    Who takes turns is a *member* of two *rings* on each of its cards: of its person's, with their other containers, and
    its person of the ring of all people there (ROOT). A turn needs credit in both.
    """

    def __init__(self, turns: Turns, now: float) -> None:
        self.rules, self.tree = turns.rules, turns.tree
        self.now = max(turns.now, now) if isfinite(now) else turns.now
        self.cards = dict(turns.cards)
        self.takers = dict(turns.takers)
        self._crowds: dict[str, _Crowd] = {}

    def done(self) -> Turns:
        return Turns(self.rules, self.cards, self.takers, self.now, self.tree)

    # ---- who is where ----

    def put(self, taker: Taker) -> None:
        before = self.takers.get(taker.id)
        if before is None or (before.where, before.active, before.queues) != (taker.where, taker.active, taker.queues):
            for gpu in taker.seats:
                self._crowds.pop(gpu, None)
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

    def queues(self, gpu: str) -> dict[str, dict[str, None]]:
        """The containers in a card's queue, by person."""
        return self._crowd(gpu).queues

    def people(self, gpu: str) -> dict[str, list[str]]:
        """The containers that compute there, in the queue or beside it, by person."""
        return self._crowd(gpu).active

    def _crowd(self, gpu: str) -> "_Crowd":
        if gpu not in self._crowds:
            self._crowds[gpu] = crowd = _Crowd()
            for taker in self.active(gpu):
                crowd.active.setdefault(taker.owner, []).append(taker.id)
                if taker.queues:
                    crowd.queues.setdefault(taker.owner, {})[taker.id] = None
        return self._crowds[gpu]

    def turned(self, taker: Taker) -> list[str]:
        """The cards for which it needs a turn."""
        return [gpu for gpu in taker.seats if gpu in taker.where and self.cards[gpu].mode is Mode.TURNS]

    def alone(self, taker: Taker, gpu: str) -> bool:
        """Whether nobody else takes turns there."""
        return not any(self.competes(gpu, ring, member) for ring, member in rings(taker))

    def competes(self, gpu: str, ring: Ring, member: str) -> bool:
        """Whether others of the ring take turns there."""
        its = self.queues(gpu) if ring is ROOT else self.queues(gpu).get(ring, {})
        return len(its) > (member in its)

    # ---- priorities ----

    def reigning(self, taker: Taker, gpu: str, ring: Ring) -> bool:
        """Whether its priority keeps all others of the ring waiting, as soon as it has the turn."""
        reign = self.cards[gpu].reigns.get(ring)
        if reign is None or reign.open:
            return False
        return reign.ruler == taker.id if ring is not ROOT else reign.ruler == taker.owner and self._leads(taker, gpu)

    def _leads(self, taker: Taker, gpu: str) -> bool:
        """Whether no container of its owner has a higher priority against other people."""
        return all(across(taker) >= across(each) for each in self.active(gpu) if each.owner == taker.owner)

    def ruled(self, gpu: str, ring: Ring) -> str | None:
        """Whose priority keeps all others of the ring waiting now."""
        reign = self.cards[gpu].reigns.get(ring)
        if reign is None or reign.ruler is None or reign.open:
            return None
        names = [reign.ruler] if ring is not ROOT else self.queues(gpu).get(reign.ruler, {})
        its = (self.takers[name] for name in names)
        return reign.ruler if any(t.called and self.reigning(t, gpu, ring) for t in its) else None

    # ---- credit ----

    def credit(self, gpu: str, ring: Ring, member: str) -> float:
        return self.cards[gpu].purses[member].credit if ring is ROOT else self.takers[member].seats[gpu].credit

    def set_credit(self, gpu: str, ring: Ring, member: str, credit: float) -> None:
        credit = max(credit, -MOST_OWED)
        card = self.cards[gpu]
        if ring is ROOT:
            purse = replace(card.purses[member], credit=credit)
            self.cards[gpu] = replace(card, purses={**card.purses, member: purse})
        else:
            self.change(member, gpu, replace(self.takers[member].seats[gpu], credit=credit))

    def open_purse(self, gpu: str, person: str) -> None:
        card = self.cards[gpu]
        if person not in card.purses:
            self.cards[gpu] = replace(card, purses={**card.purses, person: Purse(rests=self.now)})

    def close_purses(self, gpu: str) -> None:
        """Of people who have no container on the card any more, and owe nothing, or have owed it for long."""
        card = self.cards[gpu]
        there = {self.takers[name].owner for name in card.members}
        kept = {
            person: purse
            for person, purse in card.purses.items()
            if person in there or purse.rests is None or (purse.credit < 0 and self.now - purse.rests < FORGOTTEN)
        }
        self.cards[gpu] = replace(card, purses=kept)

    def part(self, gpu: str, person: str) -> float:
        """A person's share of a card: of those in the queue, if one of their containers is."""
        crowd = self._crowd(gpu)
        if person not in crowd.parts:
            its = [*crowd.queues.get(person, ())] or crowd.active.get(person, [])
            crowd.parts[person] = sum(self.cards[gpu].shares.get(name, 0.0) for name in its)
        return crowd.parts[person]

    def round_length(self, gpu: str, ring: Ring) -> float:
        """Seconds of a card that all of it together are given in each round of the ring."""
        lengths = self._crowd(gpu).lengths
        if ring not in lengths:
            its = self.people(gpu) if ring is ROOT else self.people(gpu).get(ring, ())
            whole = 1.0 if ring is ROOT else self._whole(gpu, ring)
            lengths[ring] = max(self.rules.cycle, SHORTEST * len(its) / whole)
        return lengths[ring]

    def _whole(self, gpu: str, person: str) -> float:
        """A person's share of a card, if no limit of theirs bounds it."""
        return max(self.cards[gpu].people.get(person, 1.0), self.part(gpu, person))

    def quantum(self, gpu: str, ring: Ring, member: str) -> float:
        """Seconds of a card that a member is given in each round of the ring."""
        share = self.part(gpu, member) if ring is ROOT else self.cards[gpu].shares.get(member, 0.0)
        return self.round_length(gpu, ring) * share

    def capped(self, gpu: str, ring: Ring, member: str, credit: float) -> float:
        return min(credit, 1.5 * self.quantum(gpu, ring, member))

    def saved(self, gpu: str, ring: Ring, member: str) -> float:
        """Seconds that a member can save at most while it rests."""
        return max(self.quantum(gpu, ring, member), SAVED)

    def light(self, taker: Taker) -> bool:
        """Whether it was seen to need so little that it needs no turn: less than half of its share, too."""
        shares = (self.cards[gpu].shares.get(taker.id, 1.0) / 2 for gpu in self.turned(taker))
        return taker.part < min([LIGHT, *shares])

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
            seats = {taker.id: self._accounted(taker, gpu, seconds, had[taker.id], queued) for taker in its}
            if card.mode is Mode.TURNS:
                self._account_people(gpu, its, had, seconds)
            reigns = {
                ring: replace(reign, seconds=reign.seconds + seconds * self.delays(gpu, ring))
                for ring, reign in card.reigns.items()
            }
            self.cards[gpu] = replace(self.cards[gpu], at=self.now, reigns=reigns)
            for name, seat in seats.items():
                self.change(name, gpu, seat)
                if card.mode is Mode.TURNS:
                    spent[name] = max(had[name], spent.get(name, 0.0))
        for name in self.among(gpus):
            if self.takers[name].limit is not None:
                self._spend(self.takers[name], spent.get(name, 0.0))

    def delays(self, gpu: str, ring: Ring) -> bool:
        """Whether others of the ring wait because of a priority."""
        ruler = self.ruled(gpu, ring)
        return ruler is not None and self.competes(gpu, ring, ruler)

    def divided(self, its: list[Taker], card: Card, seconds: float) -> dict[str, float]:
        """A card's time, in equal parts to those that compute; who does so for a part of it has no more than that."""
        light = {t.id: 0.0 if t.reported else t.part for t in its if t.beside or card.mode is Mode.SHARED}
        parts = {t.id: light.get(t.id, 1.0) * t.runs for t in its}
        return {name: seconds * part / max(1.0, sum(parts.values())) for name, part in parts.items()}

    def _accounted(self, taker: Taker, gpu: str, seconds: float, had: float, queued: float) -> Seat:
        """`queued`: seconds of the card that those in its queue had to divide."""
        seat, card, ring = taker.seats[gpu], self.cards[gpu], taker.owner
        if card.mode is Mode.SHARED:
            return replace(seat, had=seat.had + had, due=seat.due + had)
        if taker.beside:
            earned = card.shares.get(taker.id, 0.0) * seconds if self.light(taker) else 0.0
            credit = min(seat.credit + earned, max(seat.credit, self.saved(gpu, ring, taker.id))) - had
            return replace(seat, credit=max(credit, -MOST_OWED), had=seat.had + had, due=seat.due + had)
        charged = had if self.competes(gpu, ring, taker.id) and self.ruled(gpu, ring) != taker.id else 0.0
        waits = taker.active and taker.phase in (Phase.STOPPED, Phase.STARTING)
        return replace(
            seat,
            credit=max(seat.credit - charged, -MOST_OWED),
            had=seat.had + had,
            due=seat.due + self._due(taker, gpu) * queued,
            held_back=seat.held_back + (seconds if waits else 0.0),
        )

    def _due(self, taker: Taker, gpu: str) -> float:
        """Its part of the time that the queue has, by shares or by a priority."""
        if not taker.active:
            return 0.0
        share, part = self.cards[gpu].shares.get(taker.id, 0.0), self.part(gpu, taker.owner)
        everywhere, among = self.ruled(gpu, ROOT), self.ruled(gpu, taker.owner)
        if everywhere is not None:
            share, part = (share / part, 1.0) if everywhere == taker.owner and part else (0.0, 0.0)
        if among is not None:
            whole = self._whole(gpu, taker.owner) if everywhere is None else part
            share = min(whole, (taker.limit or 100) / 100) if among == taker.id else 0.0
        return share

    def _account_people(self, gpu: str, its: list[Taker], had: Mapping[str, float], seconds: float) -> None:
        """Who shares the card with nobody else owes nothing. Rounds pay whoever has somebody in the queue."""
        purses = dict(self.cards[gpu].purses)
        for person in dict.fromkeys(taker.owner for taker in its):
            own = [taker for taker in its if taker.owner == person]
            purse = purses[person]
            if purse.rests is not None:  # it computes, though it may not
                purse = replace(purse, rests=purse.rests + seconds)
            if self.competes(gpu, ROOT, person):
                spent = sum(had[taker.id] for taker in own) if self.ruled(gpu, ROOT) != person else 0.0
                most = max(purse.credit, self.saved(gpu, ROOT, person))
                credit = min(purse.credit + self.earning(gpu, person) * seconds, most) - spent
                purse = replace(purse, credit=max(credit, -MOST_OWED))
            purses[person] = purse
        self.cards[gpu] = replace(self.cards[gpu], purses=purses)

    def earning(self, gpu: str, person: str) -> float:
        """Seconds a second, while they have nobody in the queue."""
        crowd = self._crowd(gpu)
        if person in crowd.queues:
            return 0.0
        its = [self.takers[name] for name in crowd.active.get(person, ())]
        return sum(self.cards[gpu].shares.get(taker.id, 0.0) for taker in its if self.light(taker))

    def charge(self, taker: Taker, gpus: Iterable[str], had: float, seconds: float) -> None:
        """It computed `had` of these last seconds without a turn: those in the queue had so much less."""
        for gpu in gpus:
            seat = self.takers[taker.id].seats[gpu]
            self.change(taker.id, gpu, replace(seat, had=seat.had + had, due=seat.due + had))
            if self.cards[gpu].mode is Mode.TURNS:
                self.set_credit(gpu, taker.owner, taker.id, seat.credit - had)
            self.charge_person(gpu, taker.owner, had, seconds)
        if taker.limit is not None:
            self.put(replace(self.takers[taker.id], left=self.takers[taker.id].left - had))

    def charge_person(self, gpu: str, person: str, had: float, seconds: float) -> None:
        card = self.cards[gpu]
        if card.mode is Mode.TURNS and self.competes(gpu, ROOT, person):
            self.set_credit(gpu, ROOT, person, card.purses[person].credit - had)
        for other in self.queue(gpu):
            seat, less = other.seats[gpu], min(had * self._ran(other, card, seconds), other.seats[gpu].had)
            due = max(0.0, seat.due - had * card.shares.get(other.id, 0.0))
            self.change(other.id, gpu, replace(seat, had=seat.had - less, due=due))
            for ring, member in rings(other):
                if (less or ring is not ROOT) and self.competes(gpu, ring, member):
                    credit = self.capped(gpu, ring, member, self.credit(gpu, ring, member) + less)
                    self.set_credit(gpu, ring, member, credit)

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
        shares = {gpu: self._shares(its, most) for gpu, its in active.items()}
        wide = {t.id: t for its in active.values() for t in its if len(self.turned(t)) > 1}
        if wide:
            most |= {name: min(shares[gpu][name] for gpu in self.turned(taker)) for name, taker in wide.items()}
            shares = {gpu: self._shares(its, most) for gpu, its in active.items()}
        for gpu, its in shares.items():
            people = self.tree.divide(taker.owner for taker in active[gpu])
            if (its, people) != (self.cards[gpu].shares, self.cards[gpu].people):
                self.cards[gpu] = replace(self.cards[gpu], shares=its, people=people)
                self._crowds.pop(gpu, None)
            self._wake_people(gpu)

    def _wake_people(self, gpu: str) -> None:
        """Whoever begins to compute has what they could have had while they rested, of one round."""
        card = self.cards[gpu]
        purses = dict(card.purses)
        for person, purse in purses.items():
            if person not in card.people and purse.rests is None:
                purses[person] = replace(purse, rests=self.now)
            elif person in card.people and purse.rests is not None:
                credit = purse.credit + (self.now - purse.rests) * self.part(gpu, person)
                purses[person] = Purse(min(credit, self.saved(gpu, ROOT, person)), None)
        if purses != card.purses:
            self.cards[gpu] = replace(card, purses=purses)

    def _shares(self, its: list[Taker], most: Mapping[str, float]) -> dict[str, float]:
        """Of those in the queue among themselves; of those beside it as if they were in it."""
        weights = {taker.id: (taker.owner, taker.weight) for taker in its}
        queue = {taker.id: weights[taker.id] for taker in its if not taker.beside}
        shares = divide_by_person(self.tree, weights, most)
        return shares | divide_by_person(self.tree, queue, most) if len(queue) < len(its) else shares


@dataclass(slots=True)
class _Crowd:
    """Of one card, by person, until somebody comes or goes: containers that compute, those in the queue, shares, and
    how long rounds are."""

    active: dict[str, list[str]] = field(default_factory=dict)
    queues: dict[str, dict[str, None]] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    lengths: dict[Ring, float] = field(default_factory=dict)


def rings(taker: Taker) -> tuple[tuple[Ring, str], ...]:
    """In which rings it takes turns, and as what."""
    return (ROOT, taker.owner), (taker.owner, taker.id)


def across(taker: Taker) -> int:
    """Its priority against other people's containers."""
    return taker.priority if taker.across else 0
