"""Planned launches as people make and change them: what is recorded, refused and shown, without a scheduler."""

import contextlib
import threading
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.planned.progress import End
from scheduler.store import planned_runs
from scheduler.store.node_lease import NameTaken
from tests.support.machine import GIB, make_container, make_gpu, make_node
from tests.support.people import client_for, make_user, signed_in
from tests.support.planned import plan
from web.errors import Problem
from web.models import Allowance, Container, Planned
from web.people.roles import Role
from web.services import nodes, planning
from web.services.planning import circle

pytestmark = pytest.mark.django_db
LATER = {"image": "local", "gpu_memory": GIB}


def post(client: Any, **fields: Any) -> Any:
    return client.post("/api/v1/containers/", {**LATER, **fields}, format="json")


def test_planned_launch_is_recorded_without_a_container(ada, client, gpu):
    make_container(ada, "parent", exit_code=0, finished_at=timezone.now())
    answer = post(client, name="train", sweep="lr=0.1,0.01", after=["parent"], at_once=1, env={"LR": "{lr}"})
    assert answer.status_code == 201, answer.content
    row = answer.json()
    assert (row["name"], row["count"], row["at_once"], row["values"]) == ("train", 2, 1, ["0.1", "0.01"])
    assert row["after"][0]["name"] == "parent"
    assert Container.objects.count() == 1
    assert client.get("/api/v1/planned/").json()["results"][0]["waits_for"] == "Begins after parent."


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"after": ["nobody"]}, "after"),
        ({"name": "own", "after": ["own"]}, "after"),
        ({"after": [{"container": "a", "sweep": "b"}]}, "after"),
        ({"after": ["a:well"]}, "after"),
        ({"sweep": {"values": []}}, "sweep"),
        ({"sweep": "lr="}, "sweep"),
        ({"sweep": {"count": 100_000}}, "sweep"),
        ({"sweep": {"values": ["x"] * 10_001}}, "sweep"),
        ({"sweep": {"values": ["x"], "count": 1}}, "sweep"),
        ({"sweep": {"values": ["x" * 1000] * 5}, "command": ["{value}" * 40]}, "command"),
        ({"queue": True, "name": "{i}"}, "name"),
        ({"queue": True, "at_once": 2}, "at_once"),
        ({"retries": 2}, "retries"),
        ({"queue": True, "restart": "always"}, "restart"),
        ({"begin_at": "2020-01-01"}, "begin_at"),
        ({"begin_at": "soon"}, "begin_at"),
        ({"queue": True, "gpu_memory": 64 * GIB}, "gpu_memory"),
    ],
)
def test_bad_input_is_refused_with_its_field_and_nothing_is_kept(client, gpu, fields, field):
    answer = post(client, **fields)
    assert (answer.status_code, answer.json()["error"]["field"].split(".")[0]) == (400, field), answer.json()
    assert not Planned.objects.exists()


def test_what_a_person_may_never_have_is_refused_and_what_is_taken_only_now_is_not(ada, client, gpu):
    Allowance.objects.create(user=ada, gpu_memory=2 * GIB)
    make_container(ada, "big", gpu, quota=2 * GIB)
    assert post(client, queue=True, gpu_memory=3 * GIB).status_code == 403
    assert post(client, queue=True, gpu_memory=2 * GIB).status_code == 201


def test_same_key_plans_once(client, gpu):
    def ask(**fields: Any) -> Any:
        body = {**LATER, "queue": True, **fields}
        return client.post("/api/v1/containers/", body, format="json", headers={"Idempotency-Key": "k"})

    assert ask().json()["id"] == ask().json()["id"]
    assert ask(priority=1).json()["error"]["code"] == "idempotency_key_reused"


def test_circle_made_by_an_edit_is_refused_with_its_names(ada, gpu):
    first = plan(ada, "first")
    second = plan(ada, "second", after=["first"])
    with pytest.raises(Problem, match="first → second → first"):
        planning.edit(ada, first, after=[str(second.pk)])
    first.refresh_from_db()
    assert first.after == []


@pytest.mark.django_db(transaction=True)
def test_of_two_edits_at_once_that_would_make_a_circle_one_is_refused(ada, gpu, monkeypatch):
    first, second = plan(ada, "first"), plan(ada, "second")
    real, both, outcomes = planning._circle_through, threading.Barrier(2), list[str]()

    def looked(*given: Any) -> list[str]:
        found = real(*given)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # the other one has looked, too, or cannot before this one is done
        return found

    def edit(child: Planned, parent: Planned) -> None:
        try:
            planning.edit(ada, child, after=[str(parent.pk)])
            outcomes.append("changed")
        except Problem as problem:
            outcomes.append(problem.field)
        finally:
            connections.close_all()

    monkeypatch.setattr(planning, "_circle_through", looked)
    threads = [threading.Thread(target=edit, args=pair) for pair in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["after", "changed"]


def test_again_plans_parents_first_also_where_a_younger_one_became_a_parent(ada, gpu):
    never = {"ended": "not_started", "finished_at": timezone.now()}
    root = plan(ada, "root")
    grandchild = plan(ada, "grandchild")
    child = plan(ada, "child", after=["root"])
    planning.edit(ada, grandchild, after=["child"])
    Planned.objects.filter(pk=root.pk).update(**never | {"ended": "failed"})
    Planned.objects.filter(pk__in=[child.pk, grandchild.pk]).update(**never)
    made = planning.again(ada, Planned.objects.get(pk=root.pk))
    assert [each.name for each in made] == ["root", "child", "grandchild"]
    assert [each.after[0]["id"] for each in made[1:]] == [str(made[0].pk), str(made[1].pk)]


@given(st.dictionaries(st.integers(0, 7), st.frozensets(st.integers(0, 7), max_size=3), max_size=8), st.integers(0, 7))
def test_circle_is_found_if_and_only_if_there_is_one(parents, start):
    named = {str(key): [str(each) for each in its] for key, its in parents.items()}
    reached, todo = set(), list(named.get(str(start), ()))
    while todo:
        if (each := todo.pop()) not in reached:
            reached.add(each)
            todo += named.get(each, ())
    way = circle(named, str(start))
    assert bool(way) == (str(start) in reached)
    assert all(after in named[before] for before, after in pairwise(way))


def test_removed_node_hands_on_what_was_planned_for_it_or_ends_it(ada, gpu):
    there = make_node(name="other")
    make_gpu(there, 1)
    planned, pinned = plan(ada, node="other"), plan(ada, node="other")
    Planned.objects.filter(pk=planned.pk).update(spec={**planned.spec, "node": ""})
    there.seen_at = there.started_at = timezone.now() - timedelta(hours=1)
    there.save()
    nodes.remove(make_user("root", Role.ADMIN), "other")
    planned.refresh_from_db()
    pinned.refresh_from_db()
    assert (planned.node, planned.unread, planned.ended) == (gpu.node, True, "")
    assert (pinned.ended, pinned.reason) == (
        "not_started", 'Its node "other" was removed. There is no node "other". There are: host.'
    )  # fmt: skip


def test_commands_and_values_are_shown_to_none_but_who_may_change_it(ada, gpu):
    planned = plan(ada, sweep={"values": ["secret"]}, command=["secret"])
    path = f"/api/v1/planned/{planned.pk}/"
    assert "secret" in client_for(ada).get(path).content.decode()
    assert "secret" not in client_for(make_user("eve")).get(path).content.decode()


def test_pages_show_what_is_planned_and_do_what_the_buttons_say(ada, gpu):
    browser = signed_in(ada)
    form = {"image": "local", "name": "later", "sweep": "a,b", "gpu_memory": "1GiB", "after": "", "hold": "yes"}
    assert browser.post("/launch/", form).url == "/queue/#planned"
    planned = Planned.objects.get()
    assert "Held until it is released." in browser.get("/queue/").content.decode()
    for action, fields in (("release", {}), ("edit", {"at_once": "1"}), ("cancel", {})):
        assert browser.post(f"/queue/planned/{planned.pk}/{action}/", fields).status_code == 204
    planned.refresh_from_db()
    assert (planned.held_at, planned.at_once, planned.cancelled_by) == (None, 1, "ada")


def test_parents_may_be_others_and_one_that_is_not_there_any_more_never_began(ada, gpu):
    parent = plan(make_user("bob"), "bobs")
    child = plan(ada, "child", after=["bobs"])
    assert child.after[0]["id"] == str(parent.pk)
    gone = str(uuid4())
    assert planned_runs.ends([str(parent.pk), gone]) == {gone: End.NOT_STARTED}


def test_a_scheduler_whose_node_is_anothers_by_now_starts_nothing(ada, gpu):
    planned = plan(ada)
    Planned.objects.update(unread=False)
    asked = gpu.node_id, str(planned.pk), (1, 1), [gpu.uuid], 0.0

    def taken() -> None:
        raise NameTaken("another scheduler has it")

    with pytest.raises(NameTaken):
        planned_runs.start(*asked, taken)
    assert planned_runs.start(*asked, lambda: None, only_ask=True) is None
    assert not Container.objects.exists()
    Allowance.objects.create(user=ada, containers=0)
    with pytest.raises(planned_runs.Never):
        planned_runs.start(*asked, lambda: None, only_ask=True)
    Allowance.objects.all().delete()
    assert planned_runs.start(*asked, lambda: None) is not None
    assert planned_runs.start(*asked, lambda: None) is None  # the same once more, by whoever had read it before
    assert [each.name for each in Container.objects.all()] == [planned.name]
