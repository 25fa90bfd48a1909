"""Every endpoint for everybody, in one table: what each of them is answered."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.urls import get_resolver
from django.utils import timezone
from rest_framework.test import APIClient

from tests.support.events import EventKind, append
from tests.support.machine import GIB, make_container
from tests.support.people import A_PUBLIC_KEY, client_for, make_user, signed_in
from tests.support.planned import plan
from web.models import (
    Announcement,
    Command,
    Container,
    Preset,
    Receiver,
    Reservation,
    Rule,
    Scope,
    Silence,
    SshKey,
    Verification,
)
from web.people import roles, tokens
from web.people.roles import Role
from web.services import steering

pytestmark = pytest.mark.django_db

# Who asks, in the order of the table's columns: nobody; a viewer; a user about what is another's; a read-only token of
# the owner; the owner; an operator; an admin.
WHO = ["nobody", "viewer", "stranger", "reader", "owner", "operator", "admin"]

ALL = (401, 200, 200, 200, 200, 200, 200)  # everybody who is signed in looks
OWN = (401, 403, 403, 403, 202, 202, 202)  # steering what is theirs, or everything
OWN_PLAN = (401, 403, 403, 403, 200, 200, 200)  # the same of what has not begun: nobody has to be asked
OPERATOR = (401, 403, 403, 403, 403, 202, 202)
ADMIN = (401, 403, 403, 403, 403, 403, 202)
MANAGED = (401, 403, 403, 403, 403, 403, 200)  # people: what is there is no other's business


def made(code: int) -> tuple[int, ...]:
    """What admins alone may do, answered so."""
    return (401, 403, 403, 403, 403, 403, code)


ADMINS = made(200)

SOON = f"{timezone.now() + timedelta(days=1):%Y-%m-%dT%H:00}"
TABLE: list[tuple[str, str, Any, tuple[int, ...]]] = [
    ("GET", "containers/", None, ALL),
    ("POST", "containers/", {"image": "local"}, (401, 403, 202, 403, 202, 202, 202)),
    ("GET", "containers/{live}/", None, ALL),
    ("PATCH", "containers/{live}/", {"priority": 1}, OWN),
    ("DELETE", "containers/{ended}/", None, OWN),
    ("POST", "containers/{live}/pause/", {}, OWN),
    ("POST", "containers/{live}/resume/", {}, OWN),
    ("POST", "containers/{live}/kill/", {}, OWN),
    ("POST", "containers/{live}/move/", {"gpu": "GPU-0"}, OWN),
    ("GET", "containers/{live}/guests/", None, (401, 403, 403, 200, 200, 200, 200)),
    ("PUT", "containers/{live}/guests/", {"guests": []}, OWN_PLAN),
    ("GET", "containers/{live}/logs/", None, (401, 403, 403, 200, 200, 200, 200)),
    ("GET", "commands/", None, ALL),
    ("GET", "commands/{command}/", None, (401, 404, 404, 200, 200, 200, 200)),
    ("GET", "gpus/", None, ALL),
    ("GET", "gpus/GPU-0/", None, ALL),
    ("PATCH", "gpus/GPU-0/", {"compute": "shared"}, ADMIN),
    ("POST", "gpus/GPU-0/drain/", {}, ADMIN),
    ("POST", "gpus/GPU-0/undrain/", {}, ADMIN),
    ("GET", "nodes/", None, ALL),
    ("POST", "nodes/", {"name": "another"}, made(409)),  # the tests' database is a file
    ("GET", "nodes/host/", None, ALL),
    ("PATCH", "nodes/host/", {"labels": {"disk": "ssd"}}, ADMINS),
    ("DELETE", "nodes/host/", None, made(409)),  # its scheduler lives
    ("POST", "nodes/host/drain/", {}, ADMINS),
    ("POST", "nodes/host/undrain/", {}, ADMINS),
    ("GET", "attention/", None, ALL),
    ("GET", "announcements/", None, ALL),
    ("POST", "announcements/", {"message": "x"}, made(201)),
    ("DELETE", "announcements/{announcement}/", None, made(204)),
    ("GET", "reservations/", None, ALL),
    ("POST", "reservations/", {"starts": SOON, "minutes": 30}, (401, 403, 201, 403, 201, 201, 201)),
    ("DELETE", "reservations/{reservation}/", None, (401, 403, 403, 403, 204, 403, 204)),
    ("POST", "me/calendar/", None, (401, 201, 201, 403, 201, 201, 201)),
    ("GET", "queue/", None, ALL),
    ("PUT", "queue/", {"containers": []}, OPERATOR),
    ("GET", "planned/", None, ALL),
    ("GET", "planned/{planned}/", None, ALL),
    ("PATCH", "planned/{planned}/", {"retries": 1}, OWN_PLAN),
    ("POST", "planned/{planned}/hold/", {}, OWN_PLAN),
    ("POST", "planned/{planned}/release/", {}, OWN_PLAN),
    ("POST", "planned/{planned}/cancel/", {}, OWN_PLAN),
    ("POST", "planned/{over}/again/", None, (401, 403, 403, 403, 201, 201, 201)),
    ("GET", "policy/", None, ALL),
    ("PUT", "policy/", {"policy": "fifo"}, ADMIN),
    ("GET", "forecast/?gpu_memory=1g", None, (401, *(503,) * 6)),  # 503: asked, and not answered here
    ("GET", "allocations/", None, ALL),
    ("GET", "reports/allocations/", None, ALL),
    ("GET", "fairness/", None, ALL),
    ("GET", "peaks/", None, ALL),
    ("GET", "audit/", None, (401, 403, 403, 403, 403, 403, 200)),
    ("GET", "audit/verify/", None, MANAGED),
    ("POST", "audit/verify/", None, (401, 403, 403, 403, 403, 403, 409)),  # it is under way
    ("GET", "me/", None, ALL),
    ("POST", "me/password/", {"old": "x", "new": "y"}, (401, 409, 409, 403, 409, 409, 409)),  # nobody here has one
    ("GET", "people/", None, MANAGED),
    ("POST", "people/", {"username": "new"}, (401, 403, 403, 403, 403, 403, 201)),
    ("GET", "people/owner/", None, MANAGED),
    ("PATCH", "people/owner/", {"role": "admin"}, MANAGED),
    ("GET", "people/owner/allowance/", None, (401, 403, 403, 403, 403, 403, 404)),
    ("PATCH", "people/owner/allowance/", {"containers": 9}, MANAGED),
    ("DELETE", "people/owner/allowance/", None, (401, 403, 403, 403, 403, 403, 204)),
    ("GET", "people/owner/shares/", None, MANAGED),
    ("PATCH", "people/owner/shares/", {"shares": 2}, MANAGED),
    ("GET", "groups/", None, MANAGED),
    ("POST", "groups/", {"name": "new"}, (401, 403, 403, 403, 403, 403, 201)),
    ("GET", "groups/vision/", None, MANAGED),
    ("DELETE", "groups/vision/", None, (401, 403, 403, 403, 403, 403, 204)),
    ("POST", "groups/vision/members/", {"add": ["owner"]}, MANAGED),
    ("GET", "groups/vision/shares/", None, MANAGED),
    ("PATCH", "groups/vision/shares/", {"shares": 2}, MANAGED),
    ("GET", "groups/vision/allowance/", None, (401, 403, 403, 403, 403, 403, 404)),
    ("PATCH", "groups/vision/allowance/", {"containers": 9}, MANAGED),
    ("DELETE", "groups/vision/allowance/", None, (401, 403, 403, 403, 403, 403, 204)),
    ("GET", "allowances/", None, MANAGED),
    ("GET", "me/notifications/", None, ALL),
    ("PATCH", "me/notifications/", {"browser": False}, (401, 200, 200, 403, 200, 200, 200)),
    ("GET", "me/notices/", None, ALL),
    ("GET", "notifying/receivers/", None, ADMINS),
    ("POST", "notifying/receivers/", {"name": "x", "kind": "alertmanager", "url": "http://h/"}, made(201)),
    ("GET", "notifying/receivers/{receiver}/", None, ADMINS),
    ("PATCH", "notifying/receivers/{receiver}/", {"enabled": True}, ADMINS),
    ("DELETE", "notifying/receivers/{receiver}/", None, made(204)),
    ("POST", "notifying/receivers/{receiver}/test/", None, made(202)),
    ("GET", "notifying/rules/", None, ADMINS),
    ("POST", "notifying/rules/", {"receiver": "hook"}, made(201)),
    ("PATCH", "notifying/rules/{rule}/", {"enabled": False}, ADMINS),
    ("DELETE", "notifying/rules/{rule}/", None, made(204)),
    ("GET", "notifying/silences/", None, ADMINS),
    ("POST", "notifying/silences/", {"until": "2999-01-01"}, made(201)),
    ("DELETE", "notifying/silences/{silence}/", None, made(204)),
    ("GET", "notifying/deliveries/", None, ADMINS),
    ("GET", "tokens/", None, ALL),
    ("POST", "tokens/", {}, (401, 201, 201, 403, 201, 201, 201)),
    ("DELETE", "tokens/{token}/", None, (401, 404, 404, 403, 204, 404, 204)),
    ("GET", "presets/", None, ALL),
    ("POST", "presets/", {"name": "new", "spec": {"image": "local"}}, made(201)),
    ("GET", "presets/{preset}/", None, ALL),
    ("PUT", "presets/{preset}/", {"name": "new", "spec": {"image": "local"}}, ADMINS),
    ("DELETE", "presets/{preset}/", None, made(204)),
    ("GET", "ssh/", None, ALL),
    ("GET", "ssh-keys/", None, ALL),
    ("POST", "ssh-keys/", {"key": A_PUBLIC_KEY}, (401, 201, 201, 403, 201, 201, 201)),
    ("DELETE", "ssh-keys/{ssh_key}/", None, (401, 404, 404, 403, 204, 404, 204)),
    ("POST", "sign-in/", {"username": "x", "password": "y"}, (401,) * 7),
    ("POST", "nodes/join/", {"token": "x", "node": "x", "release": "x", "schema": "x"}, (403,) * 7),
    ("GET", "schema/", None, (200,) * 7),
    ("GET", "docs/", None, (200,) * 7),
]


@pytest.fixture
def things(gpu, monkeypatch) -> dict[str, Any]:
    monkeypatch.setattr(steering, "wait_for", lambda command: command)  # not decided yet: a 202 is a yes
    owner = make_user("owner")
    live = make_container(owner, "live", gpu)
    Group.objects.create(name="vision")
    Verification.objects.create(pk=1, started_at=timezone.now())
    return {
        "owner": owner,
        "live": live.pk,
        "ended": make_container(owner, "ended", finished_at=timezone.now()).pk,
        "command": Command.objects.create(kind=Command.Kind.PAUSE, container=live, issued_by=owner).pk,
        "token": tokens.make(owner)[0].pk,
        "reservation": Reservation.objects.create(
            user=owner, starts=SOON, zone="UTC", minutes=30, made_by="x", over_at=timezone.now() + timedelta(days=2)
        ).pk,
        "announcement": Announcement.objects.create(message="x").pk,
        "preset": Preset.objects.create(name="one", spec={"image": "local"}).pk,
        "ssh_key": SshKey.objects.create(user=owner, kind="ssh-rsa", fingerprint="SHA256:another").pk,
        "planned": plan(owner, "planned").pk,
        "over": plan(owner, "over", ended="ok", finished_at=timezone.now()).pk,
        **notifying(),
    }


def notifying() -> dict[str, int]:
    receiver = Receiver.objects.create(name="hook", kind="webhook", url="http://h/", secret="s" * 16)
    rule = Rule.objects.create(receiver=receiver)
    silence = Silence.objects.create(until=timezone.now() + timedelta(days=1), made_by="admin")
    return {"receiver": receiver.pk, "rule": rule.pk, "silence": silence.pk}


def client_of(who: str, owner: User) -> APIClient:
    match who:
        case "nobody":
            return APIClient()
        case "reader":
            return client_for(owner, Scope.READ)
        case "owner":
            return client_for(owner)
        case "stranger":
            return client_for(make_user("stranger"))
    return client_for(make_user(who, Role[who.upper()]))


@pytest.mark.parametrize(("method", "path", "body", "expected"), TABLE)
def test_each_role_gets_what_it_may(things, method, path, body, expected):
    answered = {}
    for who in WHO:
        with transaction.atomic():  # each finds everything as it was
            client = client_of(who, things["owner"])
            answer = client.generic(method, f"/api/v1/{path.format(**things)}", *_encoded(body))
            answered[who] = answer.status_code
            transaction.set_rollback(True)
    assert answered == dict(zip(WHO, expected, strict=True))


def _encoded(body: Any) -> tuple[str, ...]:
    return () if body is None else (json.dumps(body), "application/json")


def test_the_table_has_every_endpoint_and_method():
    (api,) = [entry for entry in get_resolver().url_patterns if str(entry.pattern) == "api/v1/"]
    entries = [entry for group in api.url_patterns for entry in getattr(group, "url_patterns", [group])]
    found = set()
    for entry in entries:
        if entry.name is None:
            continue
        path = re.sub(r"<\w+:\w+>", "{}", str(entry.pattern)).replace("gpus/{}/", "gpus/GPU-0/")
        view = entry.callback
        methods = getattr(view, "actions", None) or {
            name for name in ("get", "post", "put", "patch", "delete") if hasattr(view.view_class, name)
        }
        found |= {(method.upper(), path) for method in methods if method != "head"}
    for written, named in (("people", "owner"), ("groups", "vision"), ("nodes", "host")):
        found = {(method, path.replace(f"{written}/{{}}/", f"{written}/{named}/")) for method, path in found}
    assert found == {(method, re.sub(r"\{\w+\}", "{}", path.split("?")[0])) for method, path, _, _ in TABLE}


@pytest.mark.parametrize("role", Role)
def test_a_page_and_rest_report_on_the_same_people(things, gpu, role):
    """Everything but other people's output, command lines and environments is everybody's to see (docs/people.md)."""
    at = timezone.now() - timedelta(minutes=5)
    append(Container.objects.get(pk=things["live"]), at, EventKind.ACCEPTED, gpu, used_after=GIB)
    Container.objects.update(created_at=at)
    reader = make_user("reader-of-reports", role)
    browser = signed_in(reader)
    rows = client_for(reader).get("/api/v1/reports/allocations/").json()["rows"]
    shown = browser.get("/reports/").context["rows"]
    assert [row["group"] for row in shown] == [row["group"] for row in rows] == ["owner"]
    assert browser.get("/reports/", {"mine": "1"}).context["rows"] == []


@pytest.mark.parametrize("role", Role)
def test_a_page_offers_what_rest_allows(things, role):
    """Launching, the order of the queue, the policy, and steering what is another's."""
    reader = make_user("reader-of-pages", role)
    browser = signed_in(reader)
    queue, table = browser.get("/queue/").context, browser.get("/").context["page"]
    rest = client_for(reader)
    assert table.may_launch is (rest.post("/api/v1/containers/", {"image": "local"}).status_code == 202)
    assert queue["may_order"] is (rest.put("/api/v1/queue/", {"containers": []}).status_code == 202)
    assert queue["may_set_policy"] is (rest.put("/api/v1/policy/", {"policy": "fifo"}).status_code == 202)
    killed = rest.post(f"/api/v1/containers/{things['live']}/kill/", {}).status_code == 202
    assert table.may_act is killed is browser.get(f"/containers/{things['live']}/").context["may_act"]


def test_no_module_but_roles_knows_what_takes_which_role():
    rooms = Path(roles.__file__).parents[1]
    texts = {path: path.read_text() for path in rooms.rglob("*.py") if path != Path(roles.__file__)}
    assert len(texts) > 50
    assert not [
        path for path, text in texts.items() if re.search(r"Role\.(VIEWER|USER|OPERATOR)|\brole_of\(.*[<>]", text)
    ]
