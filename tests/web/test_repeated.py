"""Answers that are given again: only while nothing has changed, only to who asked the same, and counted each time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.cache import cache
from django.utils import timezone

from appliance import threads
from appliance.threads import Handler, Threads
from tests.support.machine import elsewhere, make_container, make_gpu, make_node
from tests.support.people import make_user
from web.http.gate import Gate
from web.http.repeated import Repeated
from web.models import Container, Token
from web.people import tokens

pytestmark = pytest.mark.django_db(transaction=True)

Ask = Callable[..., Awaitable[httpx.Response]]


class Server:
    """What an appliance answers with, and how many requests went the whole way."""

    def __init__(self) -> None:
        self.worked = 0
        self._threads = Threads(Handler())
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(Gate(Repeated(self._work))))  # type: ignore[arg-type]

    async def _work(self, *request: Any) -> None:
        self.worked += 1
        await self._threads(*request)

    async def ask(self, key: str, path: str = "containers/", **headers: str) -> httpx.Response:
        authorization = {"Authorization": f"Token {key}"}
        return await self._client.get(f"http://localhost/api/v1/{path}", headers=authorization | headers)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(threads, "KEPT", 0)  # or their connections would hold the test's database
    cache.clear()
    return Server()


@pytest.fixture
def ada() -> User:
    return make_user("ada")


@pytest.fixture
def key(ada: User) -> str:
    make_container(ada, gpu=make_gpu(make_node()), command=["train", "--secret"])
    return used(ada)


def used(user: User, **fields: Any) -> str:
    """The key of a token that was noted as used: that is a change, too."""
    token, key = tokens.make(user, **fields)
    Token.objects.filter(pk=token.pk).update(last_used_at=timezone.now())
    return key


def names(answer: httpx.Response) -> list[str]:
    return [row["name"] for row in answer.json()["results"]]


async def write(work: Callable[[], Any]) -> None:
    await sync_to_async(elsewhere)(work)


@pytest.mark.parametrize("path", ["containers/", "containers/?live=true&page_size=5", "gpus/", "queue/"])
async def test_the_same_question_is_worked_on_once_while_nobody_writes(server: Server, key: str, path: str) -> None:
    first = await server.ask(key, path)
    again = [await server.ask(key, path) for _ in range(5)]
    assert first.status_code == 200
    assert all((each.content, each.headers) == (first.content, first.headers) for each in again)
    assert server.worked == 1


async def test_what_was_written_before_a_question_is_in_its_answer(server: Server, key: str) -> None:
    for turn in range(20):
        await write(lambda turn=turn: Container.objects.update(name=f"turn-{turn}"))  # type: ignore[misc]
        assert names(await server.ask(key)) == names(await server.ask(key)) == [f"turn-{turn}"]


async def test_many_who_ask_the_same_at_once_are_answered_by_one_work(server: Server, key: str) -> None:
    await server.ask(key)
    server.worked = 0
    await write(lambda: Container.objects.update(name="changed"))
    answers = await asyncio.gather(*(server.ask(key) for _ in range(32)))
    assert {tuple(names(each)) for each in answers} == {("changed",)}
    assert server.worked == 1


async def test_nobody_is_given_what_another_was_answered(server: Server, key: str) -> None:
    other = await sync_to_async(lambda: used(make_user("eve")))()
    for _ in range(2):
        assert (await server.ask(key)).json()["results"][0]["command"] == ["train", "--secret"]
        assert (await server.ask(other)).json()["results"][0]["command"] is None
        assert (await server.ask("gps_made-up")).status_code == 401
        assert (await server.ask(key, Host="elsewhere")).status_code == 400


async def test_a_token_that_ends_or_whose_user_is_switched_off_is_refused_at_once(
    server: Server, ada: User, key: str
) -> None:
    other = await sync_to_async(used)(ada)
    for each in (key, other):
        assert (await server.ask(each)).status_code == (await server.ask(each)).status_code == 200
    await write(Token.objects.filter(digest=tokens.digest(key)).delete)
    assert (await server.ask(key)).status_code == 401
    assert (await server.ask(other)).status_code == 200
    await write(lambda: User.objects.update(is_active=False))
    assert (await server.ask(other)).status_code == 401


async def test_a_token_that_has_expired_is_refused_though_nobody_has_written(
    server: Server, ada: User, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = timezone.now() + timedelta(seconds=30)
    short = await sync_to_async(used)(ada, expires_at=end)
    assert (await server.ask(short)).status_code == (await server.ask(short)).status_code == 200
    assert server.worked == 1
    monkeypatch.setattr(timezone, "now", lambda: end)
    assert (await server.ask(short)).status_code == 401


async def test_each_counts_in_the_budget_of_its_user(
    server: Server, ada: User, key: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.GPUSHARE_BUDGETS = replace(settings.GPUSHARE_BUDGETS, requests_a_second=3)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # no second ends in between
    answers = [await server.ask(key) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].headers["retry-after"] == "1"
    assert server.worked < len(answers)


async def test_what_depends_on_the_time_is_worked_on_each_time(server: Server, key: str) -> None:
    for _ in range(3):
        assert (await server.ask(key, "nodes/")).status_code == 200
    assert server.worked == 3


async def test_a_refusal_is_for_once(server: Server, key: str) -> None:
    for _ in range(2):
        assert (await server.ask(key, "containers/?nonsense=1")).status_code == 400
    assert server.worked == 2


async def test_a_work_that_fails_leaves_the_next_to_work(
    server: Server, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.ask(key)
    await write(lambda: Container.objects.update(name="changed"))

    async def fail(*_: object) -> None:
        raise ValueError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(server, "_threads", fail)
        with pytest.raises(ValueError, match="broken"):
            await server.ask(key)
    assert names(await server.ask(key)) == ["changed"]
