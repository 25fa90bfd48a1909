from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from scheduler.card.generation import Generation
from scheduler.card.helper import CardHelper
from tests.support.card import Card, card

__all__ = ["card"]


@pytest.fixture
def generation(tmp_path: Path) -> Iterator[Generation]:
    generation = Generation(tmp_path / "lock")
    yield generation
    generation.close()


@pytest.fixture
async def helper(card: Card) -> AsyncIterator[CardHelper]:
    helper = CardHelper(card.env())
    assert await helper.why_not() == ""
    yield helper
    await helper.close()
