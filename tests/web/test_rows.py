"""Of a list that is made again only what changed is made anew; and it is what making all of it would have given."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group
from rest_framework.renderers import JSONRenderer

from tests.support.machine import GIB, elsewhere, make_container, make_gpu
from tests.support.people import client_for, make_user
from web.api.answers import ContainerAnswer, GpuAnswer, WaitingAnswer
from web.api.gpus import Gpus
from web.api.protocol import rows
from web.models import Claim, Container, Gpu
from web.people.roles import Role, steered_by

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def many(ada, gpu):
    """On two GPUs: some that wait, one on both, one on none, and one of somebody else's."""
    other = make_gpu(gpu.node, index=1, power=1.5)
    waits = {"suspended_since": gpu.node.started_at, "queue_bytes": GIB, "queue_reason": "It waits."}
    made = [
        make_container(ada, f"c{number}", gpu=(gpu, other)[number % 2], queue_position=3 - number, **waits)
        for number in range(3)
    ]
    made[0].claims.create(gpu=other, quota=1)
    made.append(make_container(ada, "none", environment={"SECRET": "x"}, command=["a", "é\u2028"]))
    made.append(make_container(make_user("bob"), "bobs", gpu=gpu, command=["hidden"]))
    return made


def results(client, path: str) -> list[dict[str, Any]]:
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()["results"]


def whole(user) -> dict[str, list[dict[str, Any]]]:
    """What each list is when all of it is read and made by the framework."""
    containers = Container.objects.whole().filter(removed_at=None).order_by("-created_at", "pk")
    made = {
        "gpus/": GpuAnswer(Gpus().get_queryset(), many=True),
        "queue/": WaitingAnswer(Container.objects.waiting().whole(), many=True),
        "containers/": ContainerAnswer(containers, many=True, context={"shows": steered_by(user)}),
    }
    return {path: json.loads(JSONRenderer().render(serializer.data)) for path, serializer in made.items()}


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """The names of containers whose JSON has been made."""
    names = []
    represent = ContainerAnswer.to_representation

    def noted(self: ContainerAnswer, instance: Container) -> dict[str, Any]:
        names.append(instance.name)
        return represent(self, instance)

    monkeypatch.setattr(ContainerAnswer, "to_representation", noted)
    return names


def test_the_lists_are_as_if_all_of_them_were_made_anew_whatever_changed(ada, many, gpu):
    client = client_for(ada)
    first, second, *_ = many
    for change in (
        lambda: None,
        lambda: Claim.objects.filter(container=first).update(used=7, granted=9),
        lambda: Container.objects.filter(pk=second.pk).update(suspended_since=None, queue_position=None),
        lambda: Claim.objects.filter(container=first).first().delete(),
        lambda: Container.objects.filter(pk=first.pk).update(finished_at=gpu.node.started_at, exit_code=0),
        lambda: Gpu.objects.filter(pk=gpu.pk).update(uuid="GPU-other", temperature=-3),
        lambda: type(ada).objects.filter(username="bob").update(username="robert"),
        lambda: make_container(ada, "newer", gpu=gpu),
        lambda: Container.objects.filter(name="none").update(removed_at=gpu.node.started_at),
        lambda: Container.objects.update(suspended_since=None),
        lambda: (Claim.objects.all().delete(), Container.objects.all().delete(), Gpu.objects.all().delete()),
    ):
        elsewhere(change)
        for path, expected in whole(ada).items():
            assert results(client, path) == expected, path


def test_only_what_changed_is_made_anew(ada, many, made):
    client = client_for(ada)
    results(client, "containers/")
    assert sorted(made) == sorted(row.name for row in many)
    made.clear()
    elsewhere(lambda: Container.objects.filter(name="c1").update(priority=3))
    results(client, "containers/")
    assert made == ["c1"]
    made.clear()
    elsewhere(lambda: Claim.objects.filter(container__name="c2").update(used=5))
    results(client, "containers/?page_size=4")  # another page of the same rows
    assert made == ["c2"]
    made.clear()
    elsewhere(lambda: Claim.objects.filter(container__name="c2").update(used=0))
    assert [row["gpus"][0]["used"] for row in results(client, "containers/?name=c2")] == [0]
    assert made == []  # as it was before


def test_a_row_that_was_made_for_one_shows_another_nothing_that_is_not_theirs(ada, many, made):
    bob = many[-1].owner
    clients = {name: client_for(user) for name, user in {
        "ada": ada, "bob": bob, "olga": make_user("olga", Role.OPERATOR), "vera": make_user("vera", Role.VIEWER),
    }.items()}  # fmt: skip
    sees = {
        "ada": {"c0", "c1", "c2", "none"},
        "bob": {"bobs"},
        "olga": {"c0", "c1", "c2", "none", "bobs"},
        "vera": set(),
    }
    for turn in range(2):
        for name, client in clients.items():
            shown = results(client, "containers/")
            assert {row["name"] for row in shown if row["command"] is not None} == sees[name]
            assert {row["name"] for row in shown if row["env"] is not None} == sees[name]
        elsewhere(lambda turn=turn: Container.objects.filter(name="c0").update(priority=turn + 1))
    assert len(made) == 2 * 5 + 2  # each row in two forms, whoever they are for; and one of them twice


def test_a_role_that_changes_is_seen_although_no_row_did(ada, many, made):
    vera = make_user("vera", Role.VIEWER)
    client, operators = client_for(vera), Group.objects.get_or_create(name="operator")[0]
    for change, sees in ((operators.user_set.add, 5), (operators.user_set.remove, 0)):
        results(client, "containers/")
        elsewhere(lambda change=change: change(vera))
        assert sum(row["command"] is not None for row in results(client, "containers/")) == sees


def test_pages_are_cut_where_they_were_and_counted_anew(ada, many):
    client = client_for(ada)
    order = [row["name"] for row in results(client, "containers/?ordering=name")]
    for size in (1, 2, 5, 9):
        pages = range(1, 2 + (len(order) - 1) // size)
        parts = [results(client, f"containers/?ordering=name&page_size={size}&page={page}") for page in pages]
        assert [row["name"] for part in parts for row in part] == order
    answer = client.get("/api/v1/containers/?ordering=name&page_size=2&page=last").json()
    assert (answer["count"], answer["next"], len(answer["results"])) == (5, None, 1)
    elsewhere(lambda: make_container(ada, "another"))
    answer = client.get("/api/v1/containers/?ordering=name&page_size=2&page=last").json()
    assert (answer["count"], answer["next"], len(answer["results"])) == (6, None, 2)
    assert client.get("/api/v1/containers/?ordering=name&page_size=2&page=4").status_code == 404


def test_what_is_large_of_a_row_is_not_kept(ada, many):
    names = [f"NAME_{number:06}" for number in range(rows.LARGEST // 10)]
    elsewhere(lambda: make_container(ada, "large", environment=dict.fromkeys(names, "x")))
    for _ in "12":
        assert [row["env"] for row in results(client_for(ada), "containers/?name=large")] == [names]
    made = [json for row in rows._kept._values.values() for json in row._json.values()]
    assert made
    assert max(map(len, made)) <= rows.LARGEST
