"""Every way in which turns can go, step by step, on a small host: up to three containers of one or two people on one or
two cards.

At every state everything that can happen is tried: somebody computes, rests, is barred, admitted, gets other rules,
leaves and comes back; a card is shared or not; what was asked is answered, well or not; time passes for a little, or
until something is due. States that differ only in when they are, and in what was had so far, are one. Times and debts
make the states endless, so this goes a number of steps deep instead of to the end.

In every state all of `core/turns/soundness.py` is checked; and from every state on, all who compute do so on and are
answered: each of them must have a turn within BOUND. `explore.py --turns` runs it; docs/turns.md has the counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.core.turns import (
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
    Rests,
    Rules,
    Started,
    Stopped,
    Ticked,
    Turns,
    Yields,
    decide,
    wake,
)
from scheduler.core.turns.books import Card, Phase, Taker
from scheduler.core.turns.soundness import violations

LITTLE = 0.1  # seconds that pass, or that draining takes
BOUND = 12.0  # seconds: what can be owed in so few steps, a priority's time, and a round
RULES = Rules(cycle=1.0, longest_priority=2.0)

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Party:
    """What is explored: for each container its cards and its owner, as letters; whether rules change.

    Containers without an owner are one person's.
    """

    places: tuple[str, ...]
    changes: bool = False
    owners: str = ""

    def __str__(self) -> str:
        whose = f" of {', '.join(self.owners)}" if self.owners else ""
        return f"{len(self.places)} containers on {', '.join(self.places)}{whose}{', with changes' * self.changes}"

    def join(self, now: float, name: str) -> Joined:
        place = "abc".index(name)
        return Joined(now, name, tuple(self.places[place]), owner=self.owners[place : place + 1])


PARTIES = (
    Party(("g", "g")),
    Party(("g", "g"), changes=True),
    Party(("g", "g", "g")),
    Party(("gh", "g", "h")),
    Party(("gh", "gh", "g")),
    Party(("g", "g"), changes=True, owners="xy"),
    Party(("g", "g", "g"), owners="xxy"),
    Party(("g", "g", "g"), changes=True, owners="xxy"),
    Party(("gh", "g", "h"), owners="xxy"),
    Party(("gh", "gh", "g"), owners="xyx"),
)


class Unsound(AssertionError):
    """A state that must not be; the message tells the way to it."""


def explore(party: Party, steps: int) -> int:
    """Goes so many steps deep. Returns the number of states; raises Unsound."""
    start, _ = decide(Turns(RULES), *_beginning(party))
    seen = {_key(start)}
    frontier: list[tuple[Turns, tuple[Event, ...]]] = [(start, ())]
    for _ in range(steps):
        reached = []
        for before, way in frontier:
            for event in _events(party, before):
                after, effects = decide(before, event)
                if (key := _key(after)) in seen:
                    continue
                seen.add(key)
                reached.append((after, (*way, event)))
                if wrong := [*violations(after), *_asked(before, event, effects), *_starved(after)]:
                    raise Unsound("\n".join([*map(str, (*way, event)), *wrong]))
        frontier = reached
    return len(seen)


def _beginning(party: Party) -> Iterator[Event]:
    for gpu in sorted(set("".join(party.places))):
        yield CardSeen(0.0, gpu, Mode.TURNS)
    for name, _ in zip("abc", party.places, strict=False):
        yield party.join(0.0, name)


def _events(party: Party, turns: Turns) -> Iterator[Event]:
    now = turns.now
    for name, taker in turns.takers.items():
        if taker.phase is Phase.STOPPING:
            yield from (Stopped(now, name), Stopped(now + LITTLE, name), NotStopped(now, name))
        elif taker.phase is Phase.STARTING:
            yield Started(now, name)
        elif taker.phase is Phase.GOING:
            yield Rests(now, name) if taker.where else Computes(now, name)
            yield Yields(now, name) if taker.called else Computes(now, name, part=0.1)
        elif taker.where:
            yield Rests(now, name)
        yield (Admitted if taker.barred else Barred)(now, name)
        if party.changes:
            yield Changed(now, name, priority=0 if taker.priority else 1, across=name == "b")
            yield Changed(now, name, limit=None if taker.limit else 30)
    if party.changes:
        yield Left(now, "a")
        yield party.join(now, "a")
        for gpu, card in turns.cards.items():
            yield CardSeen(now, gpu, Mode.SHARED if card.mode is Mode.TURNS else Mode.TURNS)
    if party.owners and "a" not in turns.takers:
        yield Charged(now, party.owners[0], "g", LITTLE)
    yield Ticked(now + LITTLE)
    if (due := wake(turns)) is not None:
        yield Ticked(max(now, due))


def _asked(before: Turns, event: Event, effects: list[Effect]) -> list[str]:
    """Nobody is asked twice, and nobody is stopped who is stopped."""
    wrong = [f"{event} asks twice: {effects}"] if len({each.container for each in effects}) < len(effects) else []
    for effect in effects:
        taker = before.takers.get(effect.container)
        locked = taker is not None and (
            taker.phase is Phase.STOPPED or (taker.phase is Phase.STOPPING and isinstance(event, Stopped))
        )
        if locked != isinstance(effect, Go):
            wrong.append(f"{event} asks {effect} of {taker}")
    return wrong


def _starved(turns: Turns) -> list[str]:
    """Who has no turn though it wants one for BOUND, while all that is asked is answered at once.

    Not whose owner has another container there that computes and cannot be stopped: that one has all that is due.
    """
    people = {taker.owner for taker in turns.takers.values()}
    busy = {taker.owner for taker in turns.takers.values() if taker.barred and taker.where and len(people) > 1}
    waiting = {
        name
        for name, taker in turns.takers.items()
        if taker.queues and taker.phase is not Phase.GOING and taker.owner not in busy
    }
    end = turns.now + BOUND
    while waiting:
        answers: list[Event] = [
            (Stopped if taker.phase is Phase.STOPPING else Started)(turns.now, name)
            for name, taker in turns.takers.items()
            if taker.phase in (Phase.STOPPING, Phase.STARTING)
        ]
        if not answers:
            due = wake(turns)
            if due is None or due > end:
                return [f"{sorted(waiting)} have no turn for {BOUND} s"]
            answers = [Ticked(max(due, turns.now + 1e-6))]
        for event in answers:
            turns, _ = decide(turns, event)
        waiting -= {name for name in waiting if turns.takers[name].phase is Phase.GOING}
        if turns.now > end:
            return [f"{sorted(waiting)} have no turn for {BOUND} s"] if waiting else []
    return []


def _key(turns: Turns) -> Key:
    """Without what was had, and with times as from now."""
    order = sorted(turns.takers.values(), key=lambda taker: taker.since)
    return (
        tuple((gpu, card.mode, *_between(turns, card)) for gpu, card in sorted(turns.cards.items())),
        tuple(_taken(turns, taker, order) for _, taker in sorted(turns.takers.items())),
    )


def _between(turns: Turns, card: Card) -> Iterator[object]:
    """Containers of one person owe others nothing."""
    for ring, reign in sorted(card.reigns.items(), key=str):
        yield ring, reign.ruler, reign.open, _ms(reign.seconds)
    if len(card.purses) > 1:
        for person, purse in sorted(card.purses.items()):
            rests = None if purse.rests is None else _ms(min(1.0, turns.now - purse.rests))
            yield person, _ms(purse.credit), rests


def _taken(turns: Turns, taker: Taker, order: list[Taker]) -> Key:
    return (
        taker.id, taker.phase, taker.called, taker.beside, taker.yields, taker.barred, tuple(sorted(taker.where)),
        taker.part, taker.limit, taker.priority, order.index(taker), _ms(taker.drain),
        _ms(min(1.0, turns.now - taker.began)),
        (_ms(taker.left), _ms(taker.refills - turns.now)) if taker.limit else None,
        tuple(
            (gpu, _ms(seat.credit), None if gpu in taker.where else _ms(min(1.0, turns.now - seat.rests)))
            for gpu, seat in sorted(taker.seats.items())
        ),
    )  # fmt: skip


def _ms(seconds: float) -> int:
    return round(min(seconds, 1e6) * 1000)
