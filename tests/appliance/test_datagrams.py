"""Hints between processes without Redis: lost at worst, never waited for, never more than one kept a channel."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.datagrams import AT_ONCE, UNTAKEN, Datagrams, Ear
from tests.support.eventually import eventually
from web.live import feed as feeds

SAY = """
import asyncio, sys
from appliance.datagrams import Datagrams
async def say():
    layer = Datagrams(sys.argv[1])
    for number in range(int(sys.argv[2])):
        await layer.send("scheduler", {"type": "wake", "number": number})
        await layer.group_send("live", {"type": "live.changed"})
asyncio.run(say())
"""


LONGEST_QUEUE = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())  # 10 by itself; systemd makes it 512


@pytest.fixture
def layer(tmp_path: Path) -> Datagrams:
    return Datagrams(tmp_path / ("deep" * 30) / "hints")  # a path longer than the address of a socket may be


def say(layer: Datagrams, times: int = 1) -> None:
    """From another process."""
    subprocess.run([sys.executable, "-c", SAY, layer._path, str(times)], check=True, timeout=120)


async def soon(layer: Datagrams, channel: str) -> dict[str, object]:
    async with asyncio.timeout(60):
        message: dict[str, object] = await layer.receive(channel)
    return message


async def nothing(layer: Datagrams, channel: str) -> bool:
    """Whether nothing is there. A message of our own, sent behind, shows that what came before has been read."""
    await layer.send("mark", {"type": "mark"})
    await soon(layer, "mark")
    receiving = asyncio.create_task(layer.receive(channel))
    await asyncio.sleep(0)
    receiving.cancel()
    return (await asyncio.gather(receiving, return_exceptions=True))[0] != {"type": "wake"} and receiving.cancelled()


async def test_another_process_is_heard_on_a_channel_and_in_a_group(layer):
    mine = await layer.new_channel()
    await layer.group_add("live", mine)
    await asyncio.to_thread(say, layer)
    assert await soon(layer, "scheduler") == {"type": "wake", "number": 0}
    assert await soon(layer, mine) == {"type": "live.changed"}
    await layer.group_discard("live", mine)
    await asyncio.to_thread(say, layer)
    assert await soon(layer, "scheduler") == {"type": "wake", "number": 0}
    assert await nothing(layer, mine)


async def test_whoever_listens_already_is_woken(layer):
    listening = [asyncio.create_task(soon(layer, f"outcome.{n}")) for n in range(2)]
    await asyncio.sleep(0)
    for n in range(2):
        await layer.send(f"outcome.{n}", {"type": "command.done", "n": n})
    assert [message["n"] for message in await asyncio.gather(*listening)] == [0, 1]
    assert not next(iter(layer._ears.values()))._listeners


async def test_a_thread_without_an_event_loop_tells_at_once(layer):
    """The hint of a launch: by way of a loop, it would wait for two changes of threads."""
    speaker = Datagrams(layer._path)
    assert await nothing(layer, "scheduler")  # from here on the layer listens
    await asyncio.to_thread(speaker.tell, "scheduler", {"type": "wake"})
    assert await soon(layer, "scheduler") == {"type": "wake"}
    assert not speaker._ears


async def test_two_web_processes_both_hear(layer, tmp_path):
    """Each has a socket; here the second is one of another layer object in the same loop."""
    other = Datagrams(layer._path)
    channels = [await each.new_channel() for each in (layer, other)]
    for each, channel in zip((layer, other), channels, strict=True):
        await each.group_add("live", channel)
    await asyncio.to_thread(say, layer)
    assert [await soon(each, channel) for each, channel in zip((layer, other), channels, strict=True)] == [
        {"type": "live.changed"}
    ] * 2


async def test_a_flood_is_one_hint_and_holds_nobody_up(layer):
    """The sender never waits although nobody reads; then there are few messages, and the newest kept are few."""
    await layer.send("scheduler", {"type": "wake"})  # makes our socket, which is not read while this process waits
    say(layer, 3_000)
    assert (await soon(layer, "scheduler"))["type"] == "wake"
    heard = 1
    while not await nothing(layer, "scheduler"):  # one for each time that the loop comes to read what the kernel kept
        heard += 1
    assert heard <= 1 + LONGEST_QUEUE // AT_ONCE
    for n in range(3 * UNTAKEN):
        await layer.send(f"outcome.{n}", {"type": "command.done"})
        await asyncio.sleep(0)
    ear = next(iter(layer._ears.values()))
    await nothing(layer, "scheduler")
    assert len(ear._untaken) <= UNTAKEN


async def test_a_flood_leaves_the_loop_time_for_other_work(layer):
    await layer.send("mark", {"type": "mark"})
    flood = await asyncio.create_subprocess_exec(sys.executable, "-c", SAY, str(layer._path), "3000")
    turns = 0
    while flood.returncode is None:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 20


async def test_what_is_not_one_of_ours_is_thrown_away(layer):
    await layer.send("mark", {"type": "mark"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for name in os.listdir(layer._folder):
            path = f"/proc/self/fd/{layer._folder}/{name}"
            for data in (b"", b"\xff", b"[1]", b"{}", b'["channel", [], 3]', b'["group", {}, {}]', b"[" * 5000):
                stranger.sendto(data, path)
                await asyncio.sleep(0)
                assert (await soon(layer, "mark"))["type"] == "mark" if data == b"" else True
    assert await nothing(layer, "scheduler")


async def test_the_socket_of_a_process_that_died_is_taken_away_by_the_next_who_sends(layer):
    await asyncio.to_thread(say, layer)  # it ends without a word
    assert len(os.listdir(layer._path)) == 1
    await layer.send("scheduler", {"type": "wake"})
    assert await soon(layer, "scheduler") == {"type": "wake"}
    assert len(os.listdir(layer._path)) == 1  # ours


def test_a_loop_that_ended_leaves_no_socket_behind(layer):
    for _ in range(5):
        asyncio.run(layer.send("scheduler", {"type": "wake"}))
    assert len(os.listdir(layer._path)) == 1


async def test_a_feed_that_nobody_watches_any_more_has_left_the_group(layer, monkeypatch):
    monkeypatch.setattr(feeds, "get_channel_layer", lambda: layer)
    feed = feeds.Feed()

    async def nothing_new() -> dict[str, object]:
        return {"node": {}, "gpus": {}, "containers": {}}

    monkeypatch.setattr(feed, "read_snapshot", nothing_new)
    for _ in range(3):
        async with feed.watching():
            await eventually(lambda: len(ear_of(layer).groups.get(feeds.GROUP, ())) == 1)
        await eventually(lambda: not ear_of(layer).groups[feeds.GROUP])


def ear_of(layer: Datagrams) -> Ear:
    return layer._ear()


async def test_mode_of_a_file_that_is_put_in_the_sockets_place_stays(
    layer: Datagrams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The web side may write that folder: a link there to a file of root's would open it to the web side."""
    secret = tmp_path / "secret"
    secret.touch(0o600)

    class Replaced(socket.socket):
        def bind(self, path: str) -> None:  # type: ignore[override]
            super().bind(path)
            os.unlink(path)
            os.symlink(secret, path)

    monkeypatch.setattr("appliance.datagrams.socket.socket", Replaced)
    await layer.new_channel()
    layer._ear()
    assert secret.stat().st_mode & 0o777 == 0o600


async def test_socket_is_open_to_the_group(layer: Datagrams) -> None:
    layer._ear()
    (path,) = layer._path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o660
