"""Two ranks on two simulated cards, and their gates."""

from collections.abc import Callable

import pytest

from shim.binding.gate import Gate
from tests.support.card import Card
from tests.support.grants import Grants
from tests.support.ranks import Rank, join


@pytest.fixture
def card(two_gpus: Card) -> Card:
    return two_gpus


@pytest.fixture
def rank(card: Card, grants: Grants) -> Callable[..., Rank]:
    return lambda device=0, **env: Rank(card, {**grants.env(), **env}, device)


@pytest.fixture
def gate_of(grants: Grants) -> Callable[[int], Gate]:
    """By pid."""
    return lambda pid: next(peer.page.gate for peer in grants.peers if peer.pid == pid)


@pytest.fixture
def pair(rank: Callable[..., Rank], gate_of: Callable[[int], Gate]) -> tuple[list[Rank], list[int], list[Gate]]:
    """Two ranks, the handles of their communicator, and their gates."""
    ranks = [rank(0), rank(1)]
    return ranks, join(*ranks), [gate_of(each.pid) for each in ranks]
