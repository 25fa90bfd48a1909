"""What each person has had of each card, and what was due to it: byte·seconds, of times in which somebody waited there.

*Had* is what the person's containers hold: leases, contexts, all of a guaranteed quota, also while they are idle,
paused or suspended. *Due* is its part of all that is held, divided by shares among those who hold or wait. Where nobody
waits nothing is counted: an empty card bills nobody. The sums of both over all people are equal on each card. Both
decay with HALF_LIFE.

Exact between events and cheap at each: a card's `Meter` has running integrals (how long it was waited for; what was due
by then to one share, in each node of the tree), and each person a value relative to them, which changes only when what
it holds, or whether it waits, changes. All figures stand in *forward decay* (Cormode et al., ICDE 2009): weighted by
2^((t − origin)/HALF_LIFE) instead of being decayed again and again, so an integral is a plain sum.
"""

from collections.abc import Mapping
from math import inf, isfinite, log
from typing import NamedTuple

from scheduler.core.people.tree import ROOT, Tree

HALF_LIFE = 2 * 86400.0  # seconds
GIB_HOUR = 2**30 * 3600.0  # byte·seconds
FAR = 32 * HALF_LIFE  # so far from its origin a meter begins anew: figures stay far below what a float can hold
NOTHING = 2.0**30  # byte·seconds that are forgotten then
ROUNDING = 1e-6  # byte·seconds

_UNIT = HALF_LIFE / log(2)


class Account(NamedTuple):
    """Byte·seconds, decayed to the time at which it was asked for."""

    had: float = 0.0
    due: float = 0.0

    def plus(self, other: "Account") -> "Account":
        return Account(self.had + other.had, self.due + other.due)


class Entry(NamedTuple):
    """One person on one card. `had`, `due`: what is to be added to what the meter's integrals say for it.

    `held`: bytes. `calls`: how many of its calls wait there, those of paused and swapped containers left out. `served`:
    when a due call of it was last served there.
    """

    held: int = 0
    calls: int = 0
    had: float = 0.0
    due: float = 0.0
    served: float = -inf

    @property
    def there(self) -> bool:
        return self.held > 0 or self.calls > 0


class Side(NamedTuple):
    """The root or a group on one card: of its members that are there, the sum of shares and what they hold; and what
    was due to one of these shares so far."""

    shares: float = 0.0
    held: int = 0
    due: float = 0.0


class Meter(NamedTuple):
    """One card. `at`: the time up to which its integrals are. `waited`: the integral of the times in which somebody
    waited. `sides`: ROOT and group → its side."""

    at: float = 0.0
    origin: float = 0.0
    calls: int = 0
    waited: float = 0.0
    sides: Mapping[str, Side] = {}
    people: Mapping[str, Entry] = {}


class Elsewhere(NamedTuple):
    """What all other hosts have counted, decayed to `at`. `capacity`: bytes of their cards together."""

    at: float = 0.0
    accounts: Mapping[str, Account] = {}
    capacity: int = 0


class Head(NamedTuple):
    """The call that nobody may delay on a card. `number`: heads elected earlier have lower ones. `firm`: it replaced
    another one, and is not replaced (`heads.py`)."""

    session: int
    serial: int
    container: str
    number: int
    firm: bool = False


class People(NamedTuple):
    """All that the arbiter knows of people. `owners`: person → how many containers. `heads`: GPU → its head. `late`:
    GPU → containers with a due call there. `look`: until then neither changes by itself (`heads.py`)."""

    tree: Tree = Tree()
    meters: Mapping[str, Meter] = {}
    elsewhere: Elsewhere = Elsewhere()
    owners: Mapping[str, int] = {}
    heads: Mapping[str, Head] = {}
    late: Mapping[str, tuple[str, ...]] = {}
    elected: int = 0
    look: float = -inf


NOBODY = People()


def scale(meter: Meter, time: float) -> float:
    return float(2.0 ** min(1000.0, (time - meter.origin) / HALF_LIFE))  # a clock may say anything


def decayed(account: Account, seconds: float) -> Account:
    """What is left of it after so many seconds; below 0, as after a clock was set back, counts as 0."""
    part = 2.0 ** (-max(0.0, seconds) / HALF_LIFE)
    return Account(account.had * part, account.due * part)


def settled(tree: Tree, meter: Meter, now: float) -> Meter:
    """The same with its integrals up to `now`."""
    if now <= meter.at:
        return meter
    if now - meter.origin > FAR:
        meter = _begun_anew(tree, meter)
    if not meter.calls:
        return meter._replace(at=now)
    more = (scale(meter, now) - scale(meter, meter.at)) * _UNIT
    root = meter.sides[ROOT]
    one = root.held * more / root.shares  # to one share at the root
    sides = {
        group: Side(side.shares, side.held, side.due + (_inside(tree, group, side, one) if group else one))
        for group, side in meter.sides.items()
    }
    return Meter(now, meter.origin, meter.calls, meter.waited + more, sides, meter.people)


def _inside(tree: Tree, group: str, side: Side, one: float) -> float:
    return one * tree.group_weight(group) / side.shares if side.shares else 0.0


def changed(people: People, gpu: str, person: str, now: float, held: int = 0, calls: int = 0) -> People:
    """A person holds `held` bytes more on a card from now on, and `calls` calls more of it wait there."""
    tree, known = people.tree, people.meters.get(gpu)
    meter = settled(tree, known, now) if known else Meter(now, now, sides={ROOT: Side()})
    entry = meter.people.get(person) or Entry()
    after = Entry(entry.held + held, entry.calls + calls, entry.had - held * meter.waited, entry.due, entry.served)
    sides, group = dict(meter.sides), tree.parent(person)
    if held:
        sides[ROOT] = sides[ROOT]._replace(held=sides[ROOT].held + held)
        if group:
            side = sides.get(group) or Side()
            sides[group] = side._replace(held=side.held + held)
    if entry.there != after.there:
        sign = 1 if after.there else -1
        after = after._replace(due=after.due - sign * tree.weight(person) * _due(sides, group))
        _join(tree, sides, person, sign)
    meter = Meter(
        meter.at, meter.origin, meter.calls + calls, meter.waited, sides, {**meter.people, person: after}
    )  # fmt: skip
    return people._replace(meters={**people.meters, gpu: meter})


def _due(sides: Mapping[str, Side], group: str) -> float:
    return sides[group].due if group in sides else 0.0


def _join(tree: Tree, sides: dict[str, Side], person: str, sign: int) -> None:
    """It comes, or with −1 goes: its shares count in its group, and the group's at the root while anybody is in it."""
    group, weight = tree.parent(person), sign * tree.weight(person)
    if group:
        before = sides.get(group) or Side()
        sides[group] = before._replace(shares=before.shares + weight)
        alone = not (before.shares if sign > 0 else sides[group].shares)
        weight = sign * tree.group_weight(group) if alone else 0.0
    sides[ROOT] = sides[ROOT]._replace(shares=sides[ROOT].shares + weight)


def account(tree: Tree, meter: Meter, person: str, now: float) -> Account:
    """What a person has on a card, decayed to `now`."""
    return _account(tree, settled(tree, meter, now), person, now)


def _account(tree: Tree, meter: Meter, person: str, now: float) -> Account:
    """The same of one that is settled."""
    entry = meter.people.get(person)
    if entry is None:
        return Account()
    one = _due(meter.sides, tree.parent(person)) if entry.there else 0.0
    part = scale(meter, now)
    had, due = entry.had + entry.held * meter.waited, entry.due + tree.weight(person) * one
    return Account(max(0.0, had / part), max(0.0, due / part))


def accounts(people: People, now: float) -> dict[str, dict[str, Account]]:
    """GPU → person → what it has there at `now`; those with nothing left out."""
    found: dict[str, dict[str, Account]] = {}
    for gpu, meter in people.meters.items():
        meter = settled(people.tree, meter, now)
        its = {name: _account(people.tree, meter, name, now) for name in meter.people}
        found[gpu] = {name: each for name, each in its.items() if max(each) > ROUNDING}
    return found


# ---- what changes it from outside --------------------------------------------------------------------------------


def divided_by(people: People, tree: Tree, now: float) -> People:
    """From now on cards are divided by `tree`; what was due until now stays due."""
    meters = {gpu: _rebuilt(people.tree, tree, meter, now) for gpu, meter in people.meters.items()}
    return people._replace(tree=tree, meters=meters, look=-inf)


def with_accounts(people: People, gpu: str, more: Mapping[str, Account], now: float) -> People:
    """What was counted before this scheduler began is added. Figures that make no sense are left out."""
    meter = settled(people.tree, people.meters.get(gpu) or Meter(now, now, sides={ROOT: Side()}), now)
    part, entries = scale(meter, now), dict(meter.people)
    for person, each in more.items():
        if is_sound(each):
            entry = entries.get(person) or Entry()
            entries[person] = entry._replace(had=entry.had + each.had * part, due=entry.due + each.due * part)
    return people._replace(meters={**people.meters, gpu: meter._replace(people=entries)})


def is_sound(account: Account) -> bool:
    return all(isfinite(each) and each >= 0 for each in account)


def without_accounts(people: People, person: str, now: float) -> People:
    """Nothing that a person has had, and nothing that was due to it, counts any more."""
    for gpu in people.meters:
        had, due = account(people.tree, people.meters[gpu], person, now)
        meter = settled(people.tree, people.meters[gpu], now)
        if person in meter.people:
            entry, part = meter.people[person], scale(meter, now)
            entry = entry._replace(had=entry.had - had * part, due=entry.due - due * part)
            people = people._replace(
                meters={**people.meters, gpu: meter._replace(people={**meter.people, person: entry})}
            )
    kept = {name: each for name, each in people.elsewhere.accounts.items() if name != person}
    return people._replace(elsewhere=people.elsewhere._replace(accounts=kept))


def _begun_anew(tree: Tree, meter: Meter) -> Meter:
    """The same with its origin where it stands, without those who are not there and of whom nothing is left."""
    meter = _rebuilt(tree, tree, meter, meter.at)
    part = scale(meter, meter.at)
    people = {
        name: entry._replace(had=entry.had / part, due=entry.due / part)
        for name, entry in meter.people.items()
        if entry.there or max(entry.had, entry.due) / part > NOTHING
    }
    return meter._replace(origin=meter.at, people=people)


def _rebuilt(before: Tree, after: Tree, meter: Meter, now: float) -> Meter:
    """The same by another tree: its integrals begin at 0, and everybody has what it had."""
    meter = settled(before, meter, now)
    part, sides, people = scale(meter, meter.at), {ROOT: Side()}, {}
    for name, entry in meter.people.items():
        had, due = _account(before, meter, name, meter.at)
        people[name] = entry._replace(had=had * part, due=due * part)
        if entry.held:
            for node in dict.fromkeys((ROOT, after.parent(name))):
                side = sides.get(node) or Side()
                sides[node] = side._replace(held=side.held + entry.held)
        if entry.there:
            _join(after, sides, name, 1)
    return Meter(meter.at, meter.origin, meter.calls, 0.0, sides, people)
