"""Whatever goes wrong under /api/ is reported by the one contract."""

import json
from unittest.mock import patch
from uuid import uuid4

import pytest
from django.db import OperationalError, connection
from django.utils import timezone
from rest_framework.test import APIClient

from tests.support.machine import make_container, make_node
from tests.support.people import client_for
from web.api import containers
from web.api.protocol.errors import handle
from web.errors import Problem
from web.http.gate import refuse
from web.models import Command
from web.services import issuing, nodes, steering

pytestmark = pytest.mark.django_db


def error_of(answer) -> tuple[int, str]:
    body = answer.json()
    assert set(body) == {"error"}
    assert {"code", "message"} <= set(body["error"]) <= {"code", "message", "field"}
    return answer.status_code, body["error"]["code"]


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"image=local", b"[]", b'"local"', b"null", b"3", b"\xff\xfe", b'{"image": "a", "image": "b"}',
        b'{"image": "a\\u0000"}', b'{"image": "\\ud800"}', b'{"cpus": NaN}', b'{"cpus": Infinity}',
        b'{"a":' * 40_000, b"[" * 40_000, b'{"gpu_memory": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)  # fmt: skip
@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded", "text/plain"])
def test_a_body_that_is_not_a_json_object_is_400(client, body, content_type):
    answer = client.generic("POST", "/api/v1/containers/", body, content_type)
    assert error_of(answer) == (400, "not_json")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/nothing/", (404, "not_found")),
        ("GET", "/api/v1/containers", (404, "not_found")),
        ("POST", "/api/v1", (404, "not_found")),
        ("GET", "/api/", (404, "not_found")),
        ("GET", "/api/v2/containers/", (404, "not_found")),
        ("GET", "/api/v1/containers/x/", (404, "not_found")),
        ("GET", "/api/v1/containers/00000000-0000-0000-0000-000000000000/", (404, "not_found")),
        ("DELETE", "/api/v1/containers/", (405, "method_not_allowed")),
        ("PUT", "/api/v1/gpus/", (405, "method_not_allowed")),
    ],
)
def test_what_is_not_there_is_reported(client, method, path, expected):
    assert error_of(client.generic(method, path)) == expected


def test_a_body_beyond_the_limit_is_413(client, settings):
    answer = client.generic(
        "POST", "/api/v1/containers/", b" " * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1), "application/json"
    )
    assert error_of(answer) == (413, "too_large")


@pytest.mark.parametrize("part", [b"[],", b"{},", b'{"a":0},', b"0,", b"["])
def test_a_body_of_more_parts_than_anybody_needs_is_refused_before_it_is_read(client, part):
    """3 MiB of them were 90 MiB as lists and objects."""
    answer = client.generic("POST", "/api/v1/containers/", b'{"command": [' + part * 60_000, "application/json")
    assert error_of(answer) == (400, "too_many_parts")
    text = "The body of a request may have 50000 lists, objects and commas at most."
    assert answer.json()["error"]["message"] == text


def test_a_database_that_refuses_is_503(client, monkeypatch):
    def locked(self):
        raise OperationalError("database is locked")

    monkeypatch.setattr(containers.Containers, "get_queryset", locked)
    answer = client.get(f"/api/v1/containers/{uuid4()}/")
    assert error_of(answer) == (503, "database_away")
    assert "locked" not in json.dumps(answer.json())
    assert answer["Retry-After"]


def test_what_may_have_been_done_is_not_called_nothing(admin_user, ada, monkeypatch):
    """A removal that the database breaks off: the node's rights are gone, the rest is not done."""
    make_node(name="gone", seen_at=None)

    def broken(*_, **__):
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(nodes, "_delist", broken)
    answer = client_for(admin_user).delete("/api/v1/nodes/gone/")
    assert error_of(answer) == (503, "database_away")
    assert "may have been carried out, in whole or in part" in answer.json()["error"]["message"]
    assert "Nothing was done" not in answer.json()["error"]["message"]


@pytest.mark.django_db(transaction=True)
def test_a_command_whose_outcome_cannot_be_read_is_under_way_and_not_refused(client, ada, gpu, monkeypatch):
    """It is committed: whoever is answered that nothing was done would ask for it again."""
    container = make_container(ada, "a", gpu, finished_at=timezone.now())

    def unread(command):
        with patch.object(Command.objects, "select_related", side_effect=OperationalError("server closed")):
            return issuing.wait_for(command, 0.2)

    monkeypatch.setattr(steering, "wait_for", unread)
    answer = client.delete(f"/api/v1/containers/{container.pk}/")
    assert answer.status_code == 202
    assert answer.json()["command"] == str(Command.objects.get().pk)


@pytest.mark.parametrize(("code", "answered"), [(200, 409), (204, 409), (None, 409), (99, 409), (700, 409), (503, 503)])
def test_a_refusal_is_an_error_whatever_status_its_node_wrote(client, ada, gpu, monkeypatch, code, answered):
    container = make_container(ada, "a", gpu)

    def refused(command):
        command.done_at, command.outcome, command.status = timezone.now(), Command.Outcome.REFUSED, code
        return command

    monkeypatch.setattr(steering, "wait_for", refused)
    assert error_of(client.post(f"/api/v1/containers/{container.pk}/kill/")) == (answered, "refused")


@pytest.mark.parametrize(("wait", "header"), [(5, "5"), (0.3, "1"), (1.0, "1")])
async def test_every_way_to_refuse_says_alike_when_to_come_back(wait, header):
    """REST said a second more than the doors before it."""
    problem, sent = Problem("too_many_requests", "Later.", 429, wait=wait), []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.disconnect"}

    await refuse({"path": "/api/v1/"}, receive, send, problem)
    assert dict(sent[0]["headers"])[b"retry-after"].decode() == handle(problem, {})["Retry-After"] == header


def test_a_bug_is_500_by_the_contract_and_logged(client, monkeypatch, caplog):
    def broken(self):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(containers.Containers, "get_queryset", broken)
    client.raise_request_exception = False
    answer = client.get(f"/api/v1/containers/{uuid4()}/")
    assert error_of(answer) == (500, "internal_error")
    assert "secret detail" not in answer.content.decode()
    assert "secret detail" in caplog.text


def test_a_browser_session_works_only_with_its_csrf_token(ada, gpu):
    browser = APIClient(enforce_csrf_checks=True)
    browser.force_login(ada)
    assert browser.get("/api/v1/containers/").status_code == 200
    assert error_of(browser.post("/api/v1/containers/", {"image": "local"}, format="json")) == (403, "forbidden")


def test_health_needs_no_token(node, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert APIClient().get("/healthz").json() == {"status": "ok"}
    assert APIClient().get("/readyz").json() == {"status": "ok", "database": "ok", "scheduler": "ok"}


def test_not_ready_without_a_scheduler(db):
    answer = APIClient().get("/readyz")
    assert (answer.status_code, answer.json()["scheduler"]) == (503, "no sign of life")


@pytest.fixture
def read_only(request):
    """The database takes no writes, as when its disk is full or was mounted read-only."""
    if connection.vendor != "sqlite":
        pytest.skip("done by a PRAGMA of SQLite's")

    def set_to(state: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA query_only={state}")

    yield lambda: set_to("ON")
    set_to("OFF")


@pytest.mark.django_db(transaction=True)
def test_a_database_that_takes_no_writes_still_shows_what_is_there(client, ada, gpu, read_only):
    container = make_container(ada, "a", gpu)
    read_only()
    assert client.get("/api/v1/containers/").json()["count"] == 1
    assert error_of(client.post("/api/v1/containers/", {"image": "local"})) == (503, "database_away")
    assert error_of(client.post(f"/api/v1/containers/{container.pk}/kill/")) == (503, "database_away")
    assert error_of(client.post("/api/v1/containers/", {"image": 3})) == (503, "database_away")
