"""Rights before everything else: a refusal tells nobody in what state a thing is that is not theirs to steer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tests.support.machine import make_container
from tests.support.people import client_for, make_user
from tests.web.test_permissions import TABLE, WHO, client_of
from web.models import Command, Container
from web.people import tokens
from web.people.roles import Role
from web.services import steering

pytestmark = pytest.mark.django_db

NOW = timezone.now()
STATES: dict[str, dict[str, Any]] = {
    "created": {"started_at": None},
    "running": {},
    "suspended": {"suspended_since": NOW},
    "paused": {"paused_at": NOW},
    "ended": {"finished_at": NOW, "exit_code": 0},
    "removed": {"finished_at": NOW, "removed_at": NOW},
}
ABOUT_ONE = [row for row in TABLE if "{live}" in row[1] or "{ended}" in row[1]]
REFUSED = [(row, column) for row in ABOUT_ONE for column in range(len(WHO)) if row[3][column] in (401, 403, 404)]


@pytest.fixture
def each(gpu, monkeypatch) -> dict[str, Container]:
    """One container of each state, all of them the owner's."""
    monkeypatch.setattr(steering, "wait_for", lambda command: command)
    owner = make_user("owner")
    return {state: make_container(owner, state, gpu, **fields) for state, fields in STATES.items()}


@pytest.mark.parametrize(
    ("row", "column"), REFUSED, ids=[f"{WHO[column]} {row[0]} {row[1]}" for row, column in REFUSED]
)
def test_whoever_may_not_is_told_the_same_whatever_the_state(each, row, column):
    method, path, body, expected = row
    client = client_of(WHO[column], each["running"].owner)
    told = set()
    for state, container in each.items():
        url = f"/api/v1/{re.sub(r'{(live|ended)}', str(container.pk), path)}"
        answer = client.generic(method, url, json.dumps(body or {}), "application/json")
        assert answer.status_code == expected[column], (state, answer.content)
        told.add(answer.json()["error"]["message"].replace(f'"{state}"', "it"))
    assert len(told) == 1
    assert not Command.objects.exists()


@pytest.mark.parametrize("action", ["pause", "resume", "kill", "remove", "change"])
def test_a_page_tells_no_more_than_rest(each, action):
    browser = Client()
    browser.force_login(make_user("stranger"))
    told = {
        browser.post(f"/containers/{container.pk}/{action}/", {"gpu_memory": "1g"}).content.decode().replace(state, "")
        for state, container in each.items()
    }
    (only,) = told
    assert f"You may not {action}" in only
    assert not Command.objects.exists()


@pytest.mark.parametrize("state", STATES)
def test_what_may_not_be_seen_is_not_there(each, state):
    """Tokens and commands are their owner's alone: for others they are as if they had never been made."""
    owner = each[state].owner
    command = Command.objects.create(kind=Command.Kind.PAUSE, container=each[state], issued_by=owner, done_at=NOW)
    token, _ = tokens.make(owner)
    for role in Role:
        client = client_for(make_user(f"some-{role.group}", role))
        if role is not Role.ADMIN:  # an admin may end anybody's token
            ended = client.delete(f"/api/v1/tokens/{token.pk}/")
            assert (ended.status_code, ended.json()) == (404, client.delete("/api/v1/tokens/999999/").json())
        if role < Role.OPERATOR:
            assert client.get(f"/api/v1/commands/{command.pk}/").status_code == 404
