from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from scheduler.card.helper import CardHelper
from tests.support.card import Card, card

__all__ = ["card"]


@pytest.fixture
async def helper(card: Card) -> AsyncIterator[CardHelper]:
    helper = CardHelper(card.env())
    assert await helper.why_not() == ""
    yield helper
    await helper.close()
