"""GET containers/, gpus/, queue/, nodes/: what is shown, in how many queries."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.support.machine import GIB, make_container, make_gpu
from tests.support.people import client_for, make_user, signed_in
from web.models import Claim, Container, State
from web.people.roles import Role

pytestmark = pytest.mark.django_db
NOW = timezone.now()

STATES = {
    "created": {"started_at": None},
    "running": {},
    "suspended": {"suspended_since": NOW},
    "paused": {"paused_at": NOW, "suspended_since": NOW},
    "swapped": {"swapped_at": NOW, "paused_at": NOW, "suspended_since": NOW},
    "exited": {"finished_at": NOW, "exit_code": 0, "paused_at": NOW, "swapped_at": NOW},
    "failed": {"finished_at": NOW, "exit_code": 3},
    "killed": {"finished_at": NOW, "exit_code": 0, "kill_requested_at": NOW},
}


def names(answer) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [row["name"] for row in answer.json()["results"]]


def test_the_fields_are_those_of_the_contract(client, ada, gpu):
    container = make_container(ada, "x", gpu, quota=2 * GIB, suspended_since=NOW, queue_position=1)
    Claim.objects.update(granted=GIB, used=GIB // 2, peak=GIB // 2, overhead=66 * 2**20)
    body = client.get(f"/api/v1/containers/{container.pk}/").json()
    promised = "id name owner image state engine gpus suspended_since queue_position created_at started_at finished_at"
    assert set(promised.split()) | {"exit_code", "reason"} <= set(body)
    assert (body["state"], body["owner"], body["engine"]) == ("suspended", "ada", "process")
    (held,) = body["gpus"]
    assert {name: held[name] for name in ("uuid", "quota", "granted", "used", "peak", "overhead")} == {
        "uuid": "GPU-0", "quota": 2 * GIB, "granted": GIB, "used": GIB // 2, "peak": GIB // 2, "overhead": 66 * 2**20,
    }  # fmt: skip


def test_command_and_environment_are_for_those_who_may_steer_it(ada, client):
    container = make_container(ada, "x", command=["train", "--key", "s3cret"], environment={"TOKEN": "1"})
    shown = {"ada": True, "operator": True, "viewer": False, "bob": False}
    people = {"ada": ada, "operator": make_user("o", Role.OPERATOR), "viewer": make_user("v", Role.VIEWER)}
    for name, sees in shown.items():
        client.force_authenticate(people.get(name) or make_user(name))
        [listed] = client.get("/api/v1/containers/").json()["results"]
        for body in (listed, client.get(f"/api/v1/containers/{container.pk}/").json()):
            assert (body["command"], body["env"]) == ((container.command, ["TOKEN"]) if sees else (None, None)), name


@pytest.mark.parametrize("state", State.values)
def test_filtering_by_state_agrees_with_the_state_that_is_shown(client, ada, state):
    for name, fields in STATES.items():
        make_container(ada, name, **fields)
    make_container(ada, "failed-to-start", started_at=None, finished_at=NOW)
    expected = {c.name for c in Container.objects.all() if c.state == state}
    found = client.get("/api/v1/containers/", {"state": state}).json()["results"]
    assert {row["name"] for row in found} == expected != set()
    assert {row["state"] for row in found} == {state}


def test_lists_are_filtered_ordered_and_paged(client, ada, gpu):
    bob = make_user("bob")
    for index in range(5):
        make_container(ada, f"a{index}", gpu if index < 2 else None, priority=index)
    make_container(bob, "b", image="torch")
    make_container(bob, "gone", finished_at=NOW, removed_at=NOW)
    make_container(bob, "ended", finished_at=NOW)
    get = lambda **query: names(client.get("/api/v1/containers/", query))  # noqa: E731
    assert get() == ["ended", "b", "a4", "a3", "a2", "a1", "a0"]
    assert get(live="true", owner="bob") == ["b"]
    assert get(live="false") == ["ended"]
    assert get(image="torch") == ["b"]
    assert get(name="a3") == ["a3"]
    assert get(gpu="GPU-0", ordering="name") == ["a0", "a1"]
    assert get(owner="ada", ordering="-priority", page_size="2", page="2") == ["a2", "a1"]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("containers", {"stat": "running"}),
        ("containers", {"state": "sleeping"}),
        ("containers", {"ordering": "owner__password"}),
        ("containers", {"page_size": "0"}),
        ("containers", {"live": "perhaps"}),
        ("gpus", {"x": "1"}),
        ("queue", {"page_size": "x"}),
        ("nodes", {"x": "1"}),
        ("commands", {"x": "1"}),
        ("tokens", {"x": "1"}),
    ],
)
def test_a_query_that_is_not_understood_is_refused(client, path, query):
    answer = client.get(f"/api/v1/{path}/", query)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, next(iter(query)))


def test_a_page_that_is_not_there_is_404(client):
    assert client.get("/api/v1/containers/", {"page": "7"}).status_code == 404


def test_a_list_takes_as_many_queries_for_a_thousand_as_for_one(client, ada, gpu, django_assert_max_num_queries):
    rows = [
        Container(owner=ada, name=f"n{index}", image="local", colour=0, created_at=NOW - timedelta(seconds=index))
        for index in range(10_000)
    ]
    Container.objects.bulk_create(rows)
    Claim.objects.bulk_create([Claim(container=row, gpu=gpu, quota=1) for row in rows])
    client.get("/api/v1/containers/")  # the token's first use is noted once
    with django_assert_max_num_queries(8):
        body = client.get("/api/v1/containers/", {"page_size": 1000}).json()
    assert (body["count"], len(body["results"])) == (10_000, 1000)


def test_a_gpu_shows_what_is_promised_and_held_on_it(client, ada, node, gpu):
    make_gpu(node, 1, foreign=7)
    make_container(ada, "x", gpu, quota=2 * GIB)
    make_container(ada, "y", gpu, quota=3 * GIB)
    make_container(ada, "z", gpu, quota=3 * GIB, finished_at=NOW)
    Claim.objects.update(used=5, granted=9)
    first, second = client.get("/api/v1/gpus/").json()["results"]
    assert (first["promised"], first["charged"], first["granted"]) == (5 * GIB, 10, 18)
    assert (second["promised"], second["charged"], second["foreign"]) == (0, 0, 7)


def test_the_queue_is_in_order_and_says_why(client, ada, gpu):
    make_container(ada, "second", gpu, suspended_since=NOW, queue_position=2)
    make_container(
        ada, "first", gpu, suspended_since=NOW, queue_position=1, queue_bytes=GIB, queue_reason="1 GiB short."
    )
    make_container(ada, "runs", gpu)
    rows = client.get("/api/v1/queue/").json()["results"]
    assert [row["name"] for row in rows] == ["first", "second"]
    assert (rows[0]["position"], rows[0]["bytes"], rows[0]["reason"]) == (1, GIB, "1 GiB short.")


def test_nodes_say_whether_they_live(client, node):
    (row,) = client.get("/api/v1/nodes/").json()["results"]
    assert (row["name"], row["engine"], row["alive"]) == ("host", "process", True)
    node.seen_at = NOW - timedelta(minutes=1)
    node.save(update_fields=["seen_at"])
    assert client.get("/api/v1/nodes/").json()["results"][0]["alive"] is False


def test_what_of_an_engine_is_too_old_is_shown_to_admins_alone(client, node):
    node.outdated = ["Docker's runc is 1.1.5: it should be 1.2.8 or newer."]
    node.save(update_fields=["outdated"])
    for role in Role:
        person = make_user(role.group, role)
        browser = signed_in(person)
        (row,) = client_for(person).get("/api/v1/nodes/").json()["results"]
        assert row["outdated"] == (node.outdated if role is Role.ADMIN else [])
        assert ("runc is 1.1.5" in browser.get("/").content.decode()) is (role is Role.ADMIN)


def test_people_see_their_own_commands_alone(client, ada, gpu):
    from web.services import steering

    bob = make_user("bob")
    theirs = steering.pause(bob, make_container(bob, "b"))
    mine = steering.pause(ada, make_container(ada, "a"))
    assert [row["id"] for row in client.get("/api/v1/commands/").json()["results"]] == [str(mine.pk)]
    assert client.get(f"/api/v1/commands/{theirs.pk}/").status_code == 404
