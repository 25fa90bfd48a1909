"""One whose memory gave way before anybody knew how it waits while it is idle may want to compute."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.core.events import Stirred
from scheduler.rounds.stirring import Stirring


@pytest.mark.parametrize("looked", ["leaving", "out"])
async def test_who_gave_way_and_is_a_stranger_is_taken_to_stir(tmp_path: Path, looked: str) -> None:
    """Also if it was on its way out at the first look. It may have been asked to compute just then."""
    session = SimpleNamespace(id=1, pid=os.getpid(), ended=False)
    tenant = SimpleNamespace(id="c", sessions={1: session}, swap=looked, is_out=False, gave_way="", paused=False,
                             finished=False)  # fmt: skip
    told: list[Any] = []
    state = SimpleNamespace(containers={"c": SimpleNamespace(idle_since=0.0)})
    broker: Any = SimpleNamespace(tenants={"c": tenant}, state=state, now=lambda: 5.0, tell=told.append)
    stirring = Stirring(broker, tmp_path)
    if looked == "leaving":
        await stirring.look()
        assert told == []
    tenant.swap, tenant.is_out, tenant.gave_way = "out", True, "idle"
    await stirring.look()
    assert told == [Stirred(5.0, "c")]
