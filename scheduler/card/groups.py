"""Containers whose ranks wait for each other on their cards have their turns together, as if they were one."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduler.card.terms import Seen, Terms


class Groups:
    """`first`: container → the one whose name its group has; those alone are not in it."""

    def __init__(self) -> None:
        self.first: Mapping[str, str] = {}

    def of(self, container: str) -> str:
        return self.first.get(container, container)

    def members(self, group: str) -> list[str]:
        return [id_ for id_, first in self.first.items() if first == group] or [group]

    def changed(self, first: Mapping[str, str]) -> set[str]:
        """The groups that would be others with this."""
        its = {id_ for id_ in self.first.keys() | first.keys() if self.first.get(id_) != first.get(id_)}
        return {group for id_ in its for group in (self.of(id_), first.get(id_, id_))}

    def terms(self, terms: Mapping[str, Terms]) -> dict[str, Terms]:
        """Of each group. On each of its cards it has what its members there have in sum, on all of them the least."""
        its: dict[str, list[Terms]] = {}
        for id_, each in terms.items():
            its.setdefault(self.of(id_), []).append(each)
        return {group: each[0] if len(each) == 1 else _joined(each) for group, each in its.items()}

    def seen(self, computing: Mapping[str, Seen]) -> dict[str, Seen]:
        its: dict[str, list[Seen]] = {}
        for id_, each in computing.items():
            its.setdefault(self.of(id_), []).append(each)
        return {group: each[0] if len(each) == 1 else _seen(each) for group, each in its.items()}


def _joined(its: list[Terms]) -> Terms:
    gpus = tuple(dict.fromkeys(gpu for each in its for gpu in each.gpus))
    on = [[each for each in its if gpu in each.gpus] for gpu in gpus]
    limit = min(sum(100 if each.limit is None else each.limit for each in there) for there in on)
    return replace(
        its[0],
        gpus=gpus,
        weight=min(sum(each.weight for each in there) for there in on),
        limit=limit if limit < 100 else None,
        priority=min(each.priority for each in its),
        across=all(each.across for each in its),
    )


def _seen(its: Iterable[Seen]) -> Seen:
    """By whoever computed most."""
    its = list(its)
    most = max(its, key=lambda each: (bool(each.gpus), each.had, each.part))
    return replace(most, gpus=tuple(dict.fromkeys(gpu for each in its for gpu in each.gpus)))
