"""logs/: what a container wrote, and with follow=1 what it writes."""

from __future__ import annotations

import asyncio
import threading

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient
from django.utils import timezone

from tests.support.machine import make_container
from tests.support.people import make_user
from web.console import output
from web.models import Container
from web.people import tokens

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def home(tmp_path, settings):
    settings.GPUSHARE_HOME = tmp_path
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
async def _connections_are_closed():
    """The queries of async code run in a thread whose connection nobody else would close."""
    yield
    await sync_to_async(connections.close_all)()


def launched():
    owner = make_user("owner")
    return make_container(owner, "a"), tokens.make(owner)[1]


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


async def test_follow_takes_1_and_true_and_nothing_else(home):
    container, key = await sync_to_async(launched)()
    await Container.objects.aupdate(finished_at=timezone.now())
    assert (await get(container, key, "?follow=1")).status_code == 200
    assert (await get(container, key, "?follow=perhaps")).status_code == 400


async def test_the_tail_of_an_endless_line_is_its_end_and_is_looked_for_apart_from_the_loop(
    home, settings, monkeypatch
):
    """95 MiB without a newline were searched byte by byte, and nobody else was answered meanwhile."""
    container, key = await sync_to_async(launched)()
    most = settings.GPUSHARE_BUDGETS.log_tail_bytes
    with output.path_of(container.pk).open("wb") as file:
        file.write(b"first\n")
        file.truncate(2 * most)  # sparse: NUL bytes, and no newline
        file.seek(0, 2)
        file.write(b"end")
    threads, seek = set(), output._seek_tail

    def watched(*arguments) -> None:
        threads.add(threading.current_thread())
        seek(*arguments)

    monkeypatch.setattr(output, "_seek_tail", watched)
    await Container.objects.filter(pk=container.pk).aupdate(finished_at=timezone.now())
    told = await text_of(await get(container, key, "?tail=1"))
    assert len(told) == most
    assert told.endswith(b"end")
    assert threading.main_thread() not in threads
    assert threads


@pytest.mark.parametrize("lines", [1, 2, 3, 1000])
def test_the_tail_begins_where_a_line_does_also_across_blocks(tmp_path, lines):
    path = tmp_path / "log"
    text = b"".join(b"%d %s\n" % (number, b"x" * 40_000) for number in range(5))
    path.write_bytes(text)
    with path.open("rb") as file:
        output._seek_tail(file, lines, 1 << 20)
        assert file.read().splitlines() == text.splitlines()[-lines:]
