"""The dashboard's WebSocket stays open for as long as its person is signed in, and no longer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.test import Client

from appliance.asgi import application
from tests.support.eventually import PATIENCE
from tests.support.leaving import WAYS, cookie_of
from tests.support.people import make_user, signed_in
from web.live.consumer import SIGN_IN
from web.people import visitor

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def user() -> User:
    return make_user("ann")


@pytest.fixture
def browser(user: User) -> Client:
    return signed_in(user)


class Looks:
    """Counts them, and fails the second."""

    def __init__(self) -> None:
        self.number, self.enough, self.loop = 0, asyncio.Event(), asyncio.get_running_loop()
        self.really = visitor.person

    def person(self, scope: dict[str, Any]) -> User:
        self.number += 1
        if self.number == 2:
            raise DatabaseError("away for a moment")
        if self.number == 5:
            self.loop.call_soon_threadsafe(self.enough.set)
        return self.really(scope)


@pytest.fixture
async def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    monkeypatch.setattr(visitor, "person", looks.person)
    return looks


@pytest.fixture
async def page(browser: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApplicationCommunicator]:
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.02)
    page = open_page(browser)
    await page.send_input({"type": "websocket.connect"})
    assert (await page.receive_output(PATIENCE))["type"] == "websocket.accept"
    assert '"snapshot"' in (await page.receive_output(PATIENCE))["text"]
    yield page
    await page.send_input({"type": "websocket.disconnect", "code": 1005})
    await page.wait(PATIENCE)


def open_page(browser: Client) -> ApplicationCommunicator:
    headers = [(b"host", b"localhost"), (b"origin", b"http://localhost"), cookie_of(browser)]
    scope = {"type": "websocket", "path": "/ws/dashboard/", "headers": headers, "query_string": b""}
    return ApplicationCommunicator(application, scope)


async def closed_with(page: ApplicationCommunicator) -> Any:
    while (said := await page.receive_output(PATIENCE))["type"] != "websocket.close":
        pass
    return said["code"]


@pytest.mark.parametrize("leave", WAYS)
async def test_whoever_is_no_longer_signed_in_hears_no_more_and_cannot_come_back(
    page: ApplicationCommunicator, user: User, browser: Client, leave: Any
) -> None:
    again = open_page(browser)
    await sync_to_async(leave)(user, browser)
    assert await closed_with(page) == SIGN_IN
    await again.send_input({"type": "websocket.connect"})
    assert await closed_with(again) == SIGN_IN


async def test_whoever_stays_signed_in_stays_even_if_the_database_is_away_for_a_moment(
    looks: Looks, page: ApplicationCommunicator
) -> None:
    await asyncio.wait_for(looks.enough.wait(), 60)
    assert (await page.receive_output(PATIENCE))["type"] == "websocket.send"
