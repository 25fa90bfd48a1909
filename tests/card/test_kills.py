"""Each of the three that know who is stopped, and any two of them, are killed at random moments (kills.py)."""

from tests.card.kills import SETS, Play
from tests.support.card import Card


async def test_nobody_stays_locked_whoever_of_them_is_killed_at_whatever_moment(card: Card) -> None:
    outcome = await Play(card, seed=7).run(kills=len(SETS))
    assert len(outcome.locked) == len(SETS) + 1
    assert max(outcome.without) < 30
