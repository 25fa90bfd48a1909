"""Rights before everything else: a refusal tells nobody in what state a thing is that is not theirs to steer."""

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tests.support.machine import make_container
from tests.support.people import client_for, make_user, signed_in
from tests.web.test_permissions import TABLE, WHO, client_of
from web.models import Command, Container, Node
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
def test_whoever_may_not_gets_the_same_answer_whatever_the_state(each, row, column):
    method, path, body, expected = row
    client = client_of(WHO[column], each["running"].owner)
    answers = set()
    for state, container in each.items():
        url = f"/api/v1/{re.sub(r'{(live|ended)}', str(container.pk), path)}"
        answer = client.generic(method, url, json.dumps(body or {}), "application/json")
        assert answer.status_code == expected[column], (state, answer.content)
        answers.add(answer.json()["error"]["message"].replace(f'"{state}"', "it"))
    assert len(answers) == 1
    assert not Command.objects.exists()


@pytest.mark.parametrize("action", ["pause", "resume", "kill", "remove", "change"])
def test_a_page_tells_no_more_than_rest(each, action):
    browser = signed_in(make_user("stranger"))
    answers = {
        browser.post(f"/containers/{container.pk}/{action}/", {"gpu_memory": "1g"}).content.decode().replace(state, "")
        for state, container in each.items()
    }
    (only,) = answers
    assert f"You may not {action}" in only
    assert not Command.objects.exists()


FORMS: list[tuple[str, str, dict[str, str]]] = [
    ("viewer", "/launch/", {"image": "local"}),
    ("user", "/containers/{id}/warn/", {}),
    ("user", "/containers/act/", {"action": "kill", "id": "{id}"}),
    ("user", "/queue/reorder/", {"id": "{id}"}),
    ("operator", "/queue/policy/", {"policy": "fifo"}),
    *(("operator", f"/nodes/{name}", {"do": do, "label": "a", "value": "b", "name": "x"})
      for name in ("", "host/") for do in ("drain", "remove", "label")),
]  # fmt: skip


@pytest.mark.parametrize(("role", "path", "form"), FORMS)
def test_no_form_made_by_hand_does_what_its_role_may_not(each, role, path, form):
    me, id_ = make_user("me", Role[role.upper()]), str(each["running"].pk)
    node = Node.objects.values().get()
    for strict in (False, True):  # nor without the token that only our own pages have
        browser = Client(enforce_csrf_checks=strict)
        browser.force_login(me)
        answer = browser.post(path.format(id=id_), {name: value.format(id=id_) for name, value in form.items()})
        assert answer.status_code == 403 or (not strict and "toast bad" in answer.content.decode())
    assert not Command.objects.exists()
    assert Node.objects.values().get() == node


@pytest.mark.parametrize("role", [Role.VIEWER, Role.USER, Role.OPERATOR])
@pytest.mark.parametrize("path", ["/people/", "/groups/admin/", "/audit/", "/nodes/", "/nodes/host/"])
def test_a_page_of_admins_is_for_nobody_else(node, role, path):
    answer = signed_in(make_user("me", role)).get(path)
    assert (answer.status_code, "Only an admin may" in answer.content.decode()) == (403, True)


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
