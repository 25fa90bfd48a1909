"""The process engine, cut off between two steps, and with two things at once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from scheduler.engines.base import Condition, Sighting
from scheduler.engines.outfit import Outfit
from scheduler.engines.process.engine import ProcessEngine
from tests.engines.test_process_engine import a_launch, engine, next_change, outfit
from tests.support.eventually import eventually

__all__ = ["engine", "outfit"]


@pytest.mark.parametrize("cut", [("launch.json", "ended.json"), ("ended.json",)])
async def test_removal_that_was_cut_off_stops_no_later_start(
    tmp_path: Path, outfit: Outfit, monkeypatch: pytest.MonkeyPatch, cut: tuple[str, ...]
) -> None:
    """A folder's files are removed in any order."""
    before = ProcessEngine(tmp_path / "processes", outfit)
    await before.start()
    launch = a_launch(tmp_path, "true")
    await before.launch(launch)
    await next_change(before, Condition.ENDED)

    def cut_off(folder: Path, **_: object) -> None:
        for name in cut:
            (folder / name).unlink()

    with monkeypatch.context() as broken:
        broken.setattr("shutil.rmtree", cut_off)
        await before.remove(launch.id)
    await before.close()
    after = ProcessEngine(tmp_path / "processes", outfit)
    await after.start()
    try:
        assert await after.sightings() == []
        await eventually(lambda: not (tmp_path / "processes" / launch.id).exists())
    finally:
        await after.close()


async def test_removal_that_an_earlier_release_left_half_done_has_ended(
    tmp_path: Path, outfit: Outfit, engine: ProcessEngine
) -> None:
    launch = a_launch(tmp_path, "true")
    await engine.launch(launch)
    await next_change(engine, Condition.ENDED)
    for name in ("launch.json", "ended.json"):
        (tmp_path / "processes" / launch.id / name).unlink()
    (found,) = await engine.sightings()
    assert found.condition is Condition.ENDED
    await engine.remove(launch.id)
    assert await engine.sightings() == []


async def test_removal_in_the_middle_of_a_look_is_gone_and_no_fault(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = a_launch(tmp_path, "true")
    await engine.launch(launch)
    await next_change(engine, Condition.ENDED)
    ended, removing = engine._ended, threading.Event()

    def removed_meanwhile(*arguments: Any) -> Sighting | None:
        if not removing.is_set() and threading.current_thread() is not threading.main_thread():
            removing.set()
            done = asyncio.run_coroutine_threadsafe(engine.remove(launch.id), loop)
            done.result(10)
        return ended(*arguments)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(engine, "_ended", removed_meanwhile)
    assert await engine.sightings() == []
    assert removing.is_set()
    assert not (tmp_path / "processes" / launch.id).exists()
