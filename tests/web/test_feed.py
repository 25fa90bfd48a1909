"""The reader behind the live line: one part that cannot be read keeps nothing else back."""

import asyncio
import json
from typing import Any

from tests.support.eventually import eventually
from web.live import snapshot
from web.live.feed import ATTEND, Feed


def _feed(read_attention: Any) -> Feed:
    async def read() -> dict[str, Any]:
        return {"node": {"alive": True}, **{section: {} for section in snapshot.SECTIONS}}

    feed = Feed()
    feed.read_snapshot, feed.read_attention = read, read_attention
    return feed


async def _broken() -> dict[str, Any]:
    raise ValueError("a record that nobody thought of")


def test_whoever_comes_is_sent_the_rest_where_what_needs_somebody_cannot_be_found_out(caplog):
    async def first() -> dict[str, Any]:
        async with _feed(_broken).watching() as feed, asyncio.timeout(60):
            return json.loads(await anext(feed.messages()))

    message = asyncio.run(first())
    assert (message["type"], message["data"]["node"], message["data"]["attention"]) == ("snapshot", {"alive": True}, {})
    assert "what needs somebody" in caplog.text


def test_what_needed_somebody_stays_shown_while_it_cannot_be_found_out_and_the_log_says_so_once(caplog):
    looks = 0

    async def once() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        return {"a": {"message": "It waits."}} if looks == 1 else await _broken()

    async def run() -> snapshot.Snapshot | None:
        async with _feed(once).watching() as feed, asyncio.timeout(60 * ATTEND):
            await eventually(lambda: feed.hint.set() or looks >= 4)
            return feed.state

    known = asyncio.run(run())
    assert known is not None
    assert known["attention"] == {"a": {"message": "It waits."}}
    assert caplog.text.count("what needs somebody") == 1
