"""What is begun on a container comes to its end, whatever it is found in (`core/moves/__init__.py`)."""

from itertools import product

import pytest

from scheduler.core.moves import Action, next_step
from scheduler.core.state import Stage

FACTS = ("over", "killed", "frozen", "held", "lent", "wanted", "given_up", "undone", "unseen")
ROWS = (Stage.HERE, Stage.LEAVING, Stage.OUT, Stage.COMING)  # what a row can say
DONE = {  # where it is afterwards, if it succeeds, and what is so then
    Action.ASK_BACK: (Stage.OUT, {"lent": True}),  # once there is room
    Action.CALL_OFF: (Stage.OUT, {"lent": False}),
    Action.BRING_BACK: (Stage.HERE, {"undone": False, "lent": False}),
    Action.LEND_TO_OTHERS: (Stage.OUT, {"lent": False}),
}


def found():
    for values in product((False, True), repeat=len(FACTS)):
        facts = dict(zip(FACTS, values, strict=True))
        if facts["held"] or not (facts["frozen"] or facts["given_up"]):
            yield facts


@pytest.mark.parametrize("row", ROWS)
def test_it_comes_to_rest_from_whatever_a_scheduler_finds(row):
    for facts in found():
        stage, now = row, facts
        for _ in range(len(ROWS)):
            do = next_step(stage, **now)
            if do in (Action.NOTHING, Action.WAIT):
                break
            stage, changed = DONE[do]
            now = {**now, **changed}
        else:
            raise AssertionError(f"{row!r} with {facts} goes on for ever")
        waits = do is Action.WAIT and (now["frozen"] or now["unseen"])
        assert waits or now["over"] or stage in (Stage.HERE, Stage.OUT), (row, facts)


def test_nothing_is_asked_of_a_frozen_process_and_nothing_comes_back_that_is_held():
    for row, facts in product(ROWS, list(found())):
        do = next_step(row, **facts)
        if do is Action.BRING_BACK:
            assert not any(facts[why] for why in ("frozen", "given_up", "over")), (row, facts)
            assert row is not Stage.OUT or not facts["held"], (row, facts)
        if do is Action.ASK_BACK:
            assert not any(facts[why] for why in ("held", "killed", "over")), (row, facts)
