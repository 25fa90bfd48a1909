"""Every way in which turns can go, a few steps deep; `explore --turns` goes deeper (docs/turns.md)."""

import pytest

from benchmarks.simulation.exploring.turns_explorer import PARTIES, Party, Unsound, explore
from scheduler.core.turns.dealing import Deal


@pytest.mark.parametrize("party", PARTIES, ids=str)
def test_no_way_leads_to_two_at_once_or_to_nobody_or_leaves_somebody_out(party):
    assert explore(party, 3) > 100


def test_the_explorer_finds_one_who_waits_for_too_long(monkeypatch):
    monkeypatch.setattr("benchmarks.simulation.exploring.turns_explorer.BOUND", 0.4)
    with pytest.raises(Unsound, match="have no turn for"):
        explore(Party(("g", "g")), 3)


def test_the_explorer_finds_one_who_computes_without_a_turn(monkeypatch):
    monkeypatch.setattr(Deal, "ask", lambda self, gpus: None)
    with pytest.raises(Unsound, match="compute on g without a turn"):
        explore(Party(("g", "g")), 3)
