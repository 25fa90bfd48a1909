"""A service, such as a JupyterHub, launches for others: by an admin's leave, under their allowance, in both names."""

import pytest
from django.contrib.auth.models import Group, User
from rest_framework.test import APIClient

from tests.support.people import client_for, make_user
from web.models import Allowance, AuditEntry, Command, Container
from web.people.roles import FOR_OTHERS, Role
from web.services import steering

BODY = {"image": "local", "command": ["true"], "owner": "ada"}


@pytest.fixture
def service(db) -> User:
    user = make_user("jupyterhub")
    user.groups.add(Group.objects.create(name=FOR_OTHERS))
    return user


@pytest.fixture
def hub(service: User) -> APIClient:
    return client_for(service)


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheduler answers here: each answer is a 202."""
    monkeypatch.setattr(steering, "wait_for", lambda command: command)


def refusal(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_the_container_is_the_persons_and_the_audit_log_has_both_names(hub, service, ada, gpu):
    assert hub.post("/api/v1/containers/", BODY).status_code == 202
    container = Container.objects.get()
    assert (container.owner, Command.objects.get().issued_by) == (ada, service)
    entry = AuditEntry.objects.get(action="launch")
    assert (entry.actor, entry.detail["owner"]) == ("jupyterhub", "ada")


def test_it_counts_against_the_persons_allowance_and_not_the_services(hub, service, ada, gpu):
    Allowance.objects.create(user=service, containers=0)
    Allowance.objects.create(user=ada, containers=1)
    assert hub.post("/api/v1/containers/", BODY).status_code == 202
    assert refusal(hub.post("/api/v1/containers/", BODY)) == (403, "over_allowance")


def test_nobody_else_may_however_much_they_may_otherwise(gpu, ada):
    for role in Role:
        answer = client_for(make_user(f"one-{role.name}", role)).post("/api/v1/containers/", BODY)
        assert refusal(answer) == (403, "forbidden")
    assert not Container.objects.exists()
    entry = AuditEntry.objects.filter(action="launch-refused").last()
    assert (entry.actor, entry.detail["owner"]) == ("one-ADMIN", "ada")


def test_the_service_steers_what_it_launched_and_nothing_else_of_anybody(hub, ada, gpu):
    own = steering.launch(ada, {"image": "local", "name": "own"}).container
    hub.post("/api/v1/containers/", {**BODY, "name": "notebook"})
    notebook = Container.objects.get(name="notebook")
    assert hub.post(f"/api/v1/containers/{notebook.pk}/kill/").status_code == 202
    assert refusal(hub.post(f"/api/v1/containers/{own.pk}/kill/")) == (403, "forbidden")
    commands = {row["name"]: row["command"] for row in hub.get("/api/v1/containers/").json()["results"]}
    assert commands == {"notebook": ["true"], "own": None}


@pytest.mark.parametrize(
    "change", [{"priority": 5}, {"compute_weight": 200}, {"compute_limit": None}, {"gpu_memory": "2GiB"}]
)
def test_the_service_gives_it_no_more_afterwards_than_the_person_may_have(hub, ada, gpu, change):
    Allowance.objects.create(user=ada, priority_highest=0, compute_weight=100, compute_limit=50, gpu_memory=1 << 30)
    assert hub.post("/api/v1/containers/", BODY).status_code == 202
    path = f"/api/v1/containers/{Container.objects.get().pk}/"
    assert refusal(hub.patch(path, change)) == (403, "over_allowance")
    assert hub.patch(path, {"priority": -5, "compute_weight": 50}).status_code == 202


def test_who_leaves_the_group_steers_nothing_of_others_any_more(hub, service, ada, gpu):
    hub.post("/api/v1/containers/", BODY)
    service.groups.remove(Group.objects.get(name=FOR_OTHERS))
    assert refusal(hub.post(f"/api/v1/containers/{Container.objects.get().pk}/kill/")) == (403, "forbidden")


def test_the_person_steers_it_as_their_own(hub, ada, client, gpu):
    hub.post("/api/v1/containers/", BODY)
    assert client.post(f"/api/v1/containers/{Container.objects.get().pk}/kill/").status_code == 202


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nobody", (400, "unknown_user")),
        ("away", (400, "unknown_user")),
        ("looks", (403, "forbidden")),
        ("x" * 5000, (400, "unknown_user")),
        (["ada"], (400, "invalid")),
        (None, (400, "invalid")),
        (7, (400, "invalid")),
    ],
)
def test_an_owner_who_may_not_launch_is_refused_in_a_sentence(hub, gpu, name, expected):
    make_user("away", is_active=False)
    make_user("looks", Role.VIEWER)
    answer = hub.post("/api/v1/containers/", {**BODY, "owner": name})
    assert refusal(answer) == expected
    assert answer.json()["error"]["field"] == "owner"
    assert not Container.objects.exists()


def test_a_repeated_launch_with_a_key_is_one(hub, ada, gpu):
    for _ in range(2):
        hub.post("/api/v1/containers/", BODY, headers={"idempotency-key": "a"})
    assert Container.objects.count() == 1
