"""logs/: what a container wrote, and with follow=1 what it writes."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.test import AsyncClient, Client
from django.utils import timezone

from appliance.budgets import Budgets
from tests.support import leaving
from tests.support.eventually import eventually
from tests.support.machine import make_container
from tests.support.people import make_user
from web.console import copied, output
from web.models import Container, Token
from web.people import tokens, visitor
from web.people.roles import Role

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def home(tmp_path, settings):
    settings.GPUSHARE_HOME = tmp_path
    (tmp_path / "logs").mkdir()
    return tmp_path


def launched():
    owner = make_user("owner")
    return make_container(owner, "a"), tokens.make(owner)[1]


def operator() -> str:
    return tokens.make(make_user("operator", Role.OPERATOR))[1]


async def get(container: Container, key: str, query: str = ""):
    headers = {"Authorization": f"Token {key}"}
    return await AsyncClient().get(f"/api/v1/containers/{container.pk}/logs/{query}", headers=headers)


async def text_of(answer) -> bytes:
    assert answer.status_code == 200
    return b"".join([part async for part in answer.streaming_content])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", b"one\ntwo\nthree\n"),
        ("?tail=2", b"two\nthree\n"),
        ("?tail=0", b""),
        ("?tail=3", b"one\ntwo\nthree\n"),
        ("?tail=9", b"one\ntwo\nthree\n"),
    ],
)
async def test_what_was_written(home, query, expected):
    container, key = await sync_to_async(launched)()
    output.path_of(container.pk).write_bytes(b"one\ntwo\nthree\n")
    assert await text_of(await get(container, key, query)) == expected


async def test_the_last_lines_of_a_long_log(home):
    container, key = await sync_to_async(launched)()
    lines = [b"%d " % index + b"x" * 200 + b"\n" for index in range(5000)]
    output.path_of(container.pk).write_bytes(b"".join(lines) + b"unfinished")
    assert await text_of(await get(container, key, "?tail=1001")) == b"".join(lines[-1000:]) + b"unfinished"
    assert await text_of(await get(container, key)) == b"".join(lines) + b"unfinished"


async def test_no_output_yet_is_an_empty_text(home):
    container, key = await sync_to_async(launched)()
    assert await text_of(await get(container, key)) == b""


def unreadable(path: Path) -> None:
    """For root, too: a link to itself."""
    path.symlink_to(path)


@pytest.mark.parametrize("query", ["", "?follow=1", "?tail=2"])
async def test_output_that_cannot_be_read_is_an_error_and_not_nothing(home, query):
    container, key = await sync_to_async(launched)()
    unreadable(output.path_of(container.pk))
    answer = await get(container, key, query)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "output_unreadable"
    assert "symbolic links" in answer.json()["error"]["message"]


@pytest.mark.parametrize("what", ["log", "log.position"])
async def test_a_followed_log_that_cannot_be_read_any_more_breaks_off(home, what):
    """And does not end as one that is whole, nor go on for ever."""
    container, key = await sync_to_async(launched)()
    log = output.path_of(container.pk)
    if what != "log":
        log.write_bytes(b"one\n")
        await Container.objects.filter(pk=container.pk).aupdate(finished_at=timezone.now())
    answer = await get(container, key, "?follow=1")
    unreadable(log.with_suffix(f".{what}"))
    with pytest.raises(OSError, match="symbolic links"):
        await text_of(answer)


async def test_following_ends_with_the_container(home):
    container, key = await sync_to_async(launched)()
    stream = (await get(container, key, "?follow=true")).streaming_content
    output.path_of(container.pk).write_bytes(b"first\n")
    assert await anext(stream) == b"first\n"
    later = asyncio.ensure_future(anext(stream))
    with output.path_of(container.pk).open("ab") as file:
        file.write(b"second\n")
    assert await later == b"second\n"
    with output.path_of(container.pk).open("ab") as file:
        file.write(b"last words\n")
    await Container.objects.filter(pk=container.pk).aupdate(finished_at=timezone.now())
    assert [part async for part in stream] == [b"last words\n"]


async def test_following_goes_on_after_the_end_until_the_last_lines_are_copied(home):
    """The end of a Docker container is announced at once, also where its output is still being copied: the last lines
    of `logs -f` and of an attached run were missing."""
    container, key = await sync_to_async(launched)()
    path = output.path_of(container.pk)
    path.write_bytes(b"first\n")
    position = copied.path_of_position(path)
    position.write_bytes(copied.Position(size=6).pack())
    await Container.objects.filter(pk=container.pk).aupdate(finished_at=timezone.now())
    stream = (await get(container, key, "?follow=true")).streaming_content
    assert await anext(stream) == b"first\n"
    later = asyncio.ensure_future(anext(stream))
    (log,) = output._logs()._of.values()
    await eventually(lambda: log._end_seen or later.done())  # the end was read, and the copy was not whole
    with path.open("ab") as file:
        file.write(b"last words\n")
    position.write_bytes(copied.Position(size=17, complete=True).pack())
    assert await later == b"last words\n"
    assert [part async for part in stream] == []


async def test_following_does_not_wait_for_a_copy_that_never_comes(home, monkeypatch):
    monkeypatch.setattr(output, "LEFT", 0.0)
    container, key = await sync_to_async(launched)()
    copied.path_of_position(output.path_of(container.pk)).touch()
    await Container.objects.filter(pk=container.pk).aupdate(finished_at=timezone.now())
    assert await text_of(await get(container, key, "?follow=true")) == b""


async def test_follow_takes_1_and_true_and_nothing_else(home):
    container, key = await sync_to_async(launched)()
    await Container.objects.aupdate(finished_at=timezone.now())
    assert (await get(container, key, "?follow=1")).status_code == 200
    assert (await get(container, key, "?follow=perhaps")).status_code == 400


async def test_the_tail_of_an_endless_line_is_its_end_and_is_looked_for_apart_from_the_loop(home, monkeypatch):
    """95 MiB without a newline were searched byte by byte, and nobody else was answered meanwhile."""
    container, key = await sync_to_async(launched)()
    most = output.TAIL_BYTES
    with output.path_of(container.pk).open("wb") as file:
        file.write(b"first\n")
        file.truncate(2 * most)  # sparse: NUL bytes, and no newline
        file.seek(0, 2)
        file.write(b"end")
    threads, seek = set(), output._beginning

    def watched(*arguments) -> int:
        threads.add(threading.current_thread())
        return seek(*arguments)

    monkeypatch.setattr(output, "_beginning", watched)
    await Container.objects.filter(pk=container.pk).aupdate(finished_at=timezone.now())
    text = await text_of(await get(container, key, "?tail=1"))
    assert len(text) == most
    assert text.endswith(b"end")
    assert threading.main_thread() not in threads
    assert threads


@pytest.mark.parametrize("lines", [1, 2, 3, 1000])
def test_the_tail_begins_where_a_line_does_also_across_blocks(tmp_path, lines):
    path = tmp_path / "log"
    text = b"".join(b"%d %s\n" % (number, b"x" * 40_000) for number in range(5))
    path.write_bytes(text)
    with path.open("rb") as file:
        file.seek(output._beginning(file.fileno(), len(text), lines, 1 << 20))
        assert file.read().splitlines() == text.splitlines()[-lines:]


def ends_of_a_token(user, browser):
    Token.objects.all().delete()


def expiry(user, browser):
    Token.objects.update(expires_at=timezone.now())


def rights(user, browser):
    user.groups.clear()
    user.groups.add(Group.objects.get_or_create(name="viewer")[0])


async def rest_of(stream) -> list[bytes]:
    async with asyncio.timeout(60):
        return [part async for part in stream]


@pytest.mark.parametrize("end", [ends_of_a_token, expiry, leaving.switch_off, rights])
async def test_a_followed_log_ends_with_the_right_to_read_it(home, monkeypatch, end):
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.05)
    container, key = await sync_to_async(launched)()
    output.path_of(container.pk).write_bytes(b"first\n")
    stream = (await get(container, key, "?follow=true")).streaming_content
    assert await anext(stream) == b"first\n"
    await sync_to_async(end)(container.owner, None)
    assert await rest_of(stream) == []


@pytest.mark.parametrize("leave", [way for way in leaving.WAYS if way is not leaving.delete])
async def test_a_followed_log_on_a_page_ends_with_the_session(home, monkeypatch, leave):
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.05)
    container, _ = await sync_to_async(launched)()
    output.path_of(container.pk).write_bytes(b"first\n")
    signed_in = Client()
    await sync_to_async(signed_in.force_login)(container.owner)
    browser = AsyncClient()
    browser.cookies["sessionid"] = signed_in.cookies["sessionid"].value
    stream = (await browser.get(f"/containers/{container.pk}/log/")).streaming_content
    assert await anext(stream) == b"first\n"
    await sync_to_async(leave)(container.owner, signed_in)
    assert await rest_of(stream) == []


@pytest.mark.budget("log_followers", "log_followers_in_all")
async def test_a_user_follows_so_many_logs_and_a_place_comes_free(home, settings):
    settings.GPUSHARE_BUDGETS = Budgets(log_followers=2, log_followers_in_all=3)
    container, key = await sync_to_async(launched)()
    following = [await get(container, key, "?follow=true") for _ in range(2)]
    refused = await get(container, key, "?follow=true")
    assert (refused.status_code, refused["Retry-After"]) == (429, "5")
    message = "Too many logs are followed by you (2 at once). End one, or try again later."
    assert refused.json()["error"]["message"] == message
    assert (await get(container, key)).status_code == 200, "looking without following is no matter"
    others = await sync_to_async(operator)()
    following.append(await get(container, others, "?follow=true"))
    refused = await get(container, others, "?follow=true")
    assert refused.status_code == 429
    message = "Too many logs are followed here (3 at once). End one, or try again later."
    assert refused.json()["error"]["message"] == message
    await sync_to_async(following[0].close)()  # as the server does, whether or not anybody has read any of it
    assert (await get(container, key, "?follow=true")).status_code == 200


async def test_many_followers_are_one_reader_and_one_question(home, settings):
    settings.GPUSHARE_BUDGETS = Budgets(log_followers=300, log_followers_in_all=1000, requests_a_second=1000)
    container, key = await sync_to_async(launched)()
    path = output.path_of(container.pk)
    path.write_bytes(b"first\n")
    asked = []
    live = output._logs()._live

    async def counted(containers):
        asked.append(containers)
        return await live(containers)

    output._logs()._live = counted
    answers = [await get(container, key, "?follow=true") for _ in range(300)]
    assert {(each.status_code, each.get("Retry-After")) for each in answers} == {(200, None)}
    streams = [each.streaming_content for each in answers]
    began = time.monotonic()
    assert [await anext(stream) for stream in streams] == [b"first\n"] * 300
    assert opened(path) == 1
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    with path.open("ab") as file:
        file.write(b"second\n")
    assert await asyncio.gather(*waiting) == [b"second\n"] * 300
    assert 1 <= len(asked) <= (time.monotonic() - began) / output.ASK + 1
    for stream in streams:
        await stream.aclose()


def opened(path: Path) -> int:
    return [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()].count(str(path))
