"""What a launch asks of its node, as Docker's --constraint has it: `node.labels.disk==ssd`, `node!=gpu3`.

The same words mean the same with a Swarm, which honours them by the labels that its own nodes have, and without one,
where the labels of `nodes/` count. So their signs are those that Docker takes, the case of a value makes no difference,
and a node without the label differs from every value.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rest_framework import serializers

from web.errors import invalid

LABEL = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?")  # its name
_CONSTRAINT = re.compile(r"node(?:\.hostname|\.labels\.(?P<label>[^=!\s]+))?\s*(?P<how>[=!]=)\s*(?P<value>\S(?:.*\S)?)")
_VALUE = re.compile(r"[a-zA-Z0-9:_\s.*()?+\[\]\\^$|/-]{1,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Constraint:
    """`label` is empty where it is about the node's name."""

    label: str
    equal: bool
    value: str

    def __str__(self) -> str:
        return f"node{'.labels.' * bool(self.label)}{self.label}{'==' if self.equal else '!='}{self.value}"

    def of_docker(self) -> str:
        """As Swarm has it: a node's name is its host name there."""
        return str(self) if self.label else str(self).replace("node", "node.hostname", 1)

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether it is so of the node of this name, with these labels."""
        there = labels.get(self.label, "") if self.label else name
        return (there.casefold() == self.value.casefold()) is self.equal


def parse(text: str) -> Constraint:
    """Raises ValueError with a sentence."""
    found = _CONSTRAINT.fullmatch(text.strip())
    if found is None or (found["label"] is not None and not LABEL.fullmatch(found["label"])):
        raise ValueError(
            f"{text[:80]!r} is not a constraint: write node==NAME, node!=NAME, node.labels.NAME==VALUE or "
            "node.labels.NAME!=VALUE."
        )
    if not _VALUE.fullmatch(found["value"]):
        raise ValueError(
            f"{found['value'][:80]!r} cannot be asked for: use letters, digits, spaces and :_.*()?+[]\\^$|/-"
        )
    return Constraint(found["label"] or "", found["how"] == "==", found["value"])


def check(text: str) -> str:
    """A constraint in its normal form."""
    try:
        return str(parse(text))
    except ValueError as error:
        raise serializers.ValidationError(str(error)) from None


def read(texts: Iterable[str]) -> list[str]:
    """Each in its normal form. Raises Problem."""
    try:
        return [str(parse(text)) for text in texts if text.strip()]
    except ValueError as error:
        raise invalid(str(error), "constraints") from None


def hold(constraints: Iterable[str], name: str, labels: Mapping[str, str]) -> bool:
    """Whether all of them are so of the node of this name, with these labels."""
    return all(parse(each).holds(name, labels) for each in constraints)
