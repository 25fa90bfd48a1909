"""Tasks that nobody awaits, and a wait for an event that has an end (scheduler/parts.py)."""

import asyncio

import pytest

from scheduler import parts
from scheduler.parts import Background, is_set_within


async def test_a_task_is_kept_until_it_ends() -> None:
    background, done = Background(), asyncio.Event()
    background.begin(done.wait())
    assert len(background) == 1
    done.set()
    await asyncio.gather(*background)
    assert not background


async def test_what_a_task_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise OSError("no room")

    background = Background()
    background.begin(fail(), "a look")
    await asyncio.gather(*background, return_exceptions=True)
    assert not background
    assert "a look failed" in caplog.text
    assert "no room" in caplog.text


async def test_closing_cancels_and_waits_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    background = Background()
    background.begin(work())
    await asyncio.sleep(0)
    await background.close()
    assert cleaned
    assert not background
    assert not caplog.text


async def test_a_wait_for_an_event_says_whether_it_came() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0.001)
    event.set()
    assert await is_set_within(event, 0.001)


async def test_a_task_that_loses_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a client of Redis takes it for the end of its own time-out: the scheduler would not end."""
    monkeypatch.setattr(parts, "AGAIN", 0.01)
    reported = []

    async def loses() -> None:
        while len(reported) < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                reported.append("to end")

    background = Background()
    background.begin(loses())
    await asyncio.sleep(0)
    await background.close()
    assert (reported, background) == (["to end"] * 2, set())


async def test_a_part_that_loses_its_cancellation_to_an_error_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "AGAIN", 0.01)
    monkeypatch.setattr(parts, "RESTART", 0.0)
    begun, calls = asyncio.Event(), []

    async def loses() -> None:
        calls.append("begun")
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if len(calls) > 1:
                raise
            raise OSError("the connection was closed") from None

    async with parts.running([parts.Part("hints", loses)]):
        await begun.wait()
    assert calls == ["begun"]


async def test_a_part_begins_again_although_its_call_has_left_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a TaskGroup of Python 3.11 does, if one of its tasks fails while the others are waited for."""
    monkeypatch.setattr(parts, "RESTART", 0.0)
    again = asyncio.Event()

    async def call() -> None:
        task = asyncio.current_task()
        assert task
        if task.cancelling():
            again.set()
        task.cancel()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("no thread") from None

    async with parts.running([parts.Part("plug-in", call)]):
        await again.wait()
