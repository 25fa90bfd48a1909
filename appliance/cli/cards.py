"""Cards by the names that people give them: a number, a UUID, or NODE/NUMBER where several nodes have that number."""

from collections.abc import Iterable, Sequence

from appliance.cli.client import Json
from appliance.cli.errors import Problem


def named(card: Json) -> str:
    return f"{card['node']}/{card['index']}"


def chosen(cards: Iterable[Json], words: Sequence[str], node: str | None = None) -> list[Json]:
    """The cards of these names, of this node if it is given; all where no word is. Raises Problem."""
    there = [card for card in cards if node is None or card["node"] == node]
    if not words:
        return there
    found: list[Json] = []
    for word in words:
        fitting = [card for card in there if word in (str(card["index"]), card["uuid"], named(card))]
        if not fitting:
            raise Problem(f"no GPU {word}", code="not_found", hint="gpushare gpus lists them", status=404)
        if len({card["node"] for card in fitting}) > 1:
            names = " or ".join(named(card) for card in fitting[:3])
            raise Problem(f"{len(fitting)} nodes have a GPU {word}", code="ambiguous", hint=f"write {names}")
        found += [card for card in fitting if card not in found]
    return found
