"""How much of their due people and groups have had: above 1 is more, below it less.

ratio = (had + A × R) / (due + A), where R is the ratio of the group that a person stands in, and 1 at the root. A is a
quarter of an hour of all cards: of whom little is known the ratio is its group's, and nobody wins by having just come.
"""

from typing import NamedTuple

from scheduler.core.people import ledger
from scheduler.core.people.ledger import Account
from scheduler.core.state import State

PRIOR = 900.0  # seconds of all cards


class Ratios(NamedTuple):
    """Of everybody of whom something is known, at one time: by person and by group."""

    people: dict[str, float]
    groups: dict[str, float]
    accounts: dict[str, Account]

    def of(self, person: str, group: str) -> float:
        return self.people.get(person, self.groups.get(group, 1.0))


def ratios(state: State, now: float) -> Ratios:
    people = state.people
    tree = people.tree
    prior = PRIOR * max(1, sum(card.most for card in state.gpus.values()) + people.elsewhere.capacity)
    age = now - people.elsewhere.at
    total = {name: ledger.decayed(each, age) for name, each in people.elsewhere.accounts.items()}
    for its in ledger.accounts(people, now).values():
        for name, each in its.items():
            total[name] = total.get(name, Account()).plus(each)
    sums: dict[str, Account] = {}
    for name, each in total.items():
        if group := tree.parent(name):
            sums[group] = sums.get(group, Account()).plus(each)
    groups = {name: _ratio(each, prior, 1.0) for name, each in sums.items()}
    single = {name: _ratio(each, prior, groups.get(tree.parent(name), 1.0)) for name, each in total.items()}
    return Ratios(single, groups, total)


def _ratio(account: Account, prior: float, like: float) -> float:
    return (account.had + prior * like) / (account.due + prior)
