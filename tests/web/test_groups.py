"""Groups and allowances by REST: what an admin can do, what nobody can, and that all of it is recorded."""

import re
from threading import Thread

import pytest
from django.contrib.auth.models import Group
from django.db import connections

from tests.support.machine import GIB
from tests.support.people import last_entry, make_user, raw, refused, signed_in
from web import audit
from web.errors import Problem
from web.models import Allowance, AuditEntry
from web.people import granting, groups
from web.people.roles import Role, role_of

pytestmark = pytest.mark.django_db


@pytest.mark.django_db(transaction=True)
def test_a_group_that_is_deleted_while_its_allowance_is_changed_is_waited_for_by_nobody(monkeypatch):
    """Each held a lock that the other was about to ask for: PostgreSQL ended one of them."""
    boss, team = make_user("boss", Role.ADMIN), Group.objects.create(name="team")
    Allowance.objects.create(group=team, containers=1)
    record, failed = audit.record, []

    def delete() -> None:
        try:
            groups.delete(boss, team)
        except Exception as error:
            failed.append(error)
        finally:
            connections.close_all()

    deleting = Thread(target=delete)

    def record_late(actor: str, action: str, *about: object, **detail: object) -> None:
        if action == "allowance-changed":
            deleting.start()
            deleting.join(1)  # it does not end: it waits for the row that this transaction holds
        record(actor, action, *about, **detail)

    monkeypatch.setattr(audit, "record", record_late)
    granting.grant(boss, Group.objects.get(name="team"), {"containers": 2})
    deleting.join(60)
    assert not failed
    assert not Group.objects.filter(name="team").exists()
    actions = AuditEntry.objects.order_by("id").values_list("action", flat=True)
    assert list(actions) == ["allowance-changed", "group-deleted"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "late",
    [
        lambda boss, team: granting.grant(boss, team, {"containers": 2}),
        lambda boss, team: groups.change_members(boss, team, {"add": ["boss"]}),
        lambda boss, team: groups.delete(boss, team),
    ],
    ids=["its first allowance", "its members", "its end"],
)
def test_what_comes_to_a_group_just_after_it_was_deleted_is_refused_in_a_sentence(late):
    boss, team = make_user("boss", Role.ADMIN), Group.objects.create(name="team")
    groups.delete(boss, Group.objects.get(name="team"))
    with pytest.raises(Problem, match='"team" was deleted just now') as refused:
        late(boss, team)
    assert refused.value.status == 404
    assert list(AuditEntry.objects.values_list("action", flat=True)) == ["group-deleted"]


def test_a_group_and_its_members(rest, ada):
    assert rest.post("/api/v1/groups/", {"name": "vision & 数学"}).status_code == 201
    path = "/api/v1/groups/vision & 数学/"
    answer = rest.post(f"{path}members/", {"add": ["ada"]}).json()
    assert (answer["members"], answer["role"], answer["allowance"]) == (["ada"], False, None)
    assert last_entry().detail == {"added": ["ada"], "removed": []}
    assert refused(rest.post(f"{path}members/", {"add": ["nobody"], "remove": ["ada"]})) == (
        400,
        "unknown_person",
        "add",
    )
    assert rest.get(path).json()["members"] == ["ada"]
    assert rest.post(f"{path}members/", {"remove": ["ada"]}).json()["members"] == []
    assert rest.delete(path).status_code == 204
    assert rest.get(path).status_code == 404


@pytest.mark.parametrize("name", ["", " a", "a/b", "..", "a\0", "\udfff", "x" * 151, "a\nb", "ｖ", 5, None])
def test_names_that_no_group_may_have(rest, name):
    assert raw(rest, "POST", "groups/", {"name": name}).status_code == 400


def test_the_groups_of_the_roles_stay(rest, ada):
    assert refused(rest.delete("/api/v1/groups/user/"))[:2] == (409, "role")
    assert refused(rest.post("/api/v1/groups/admin/members/", {"add": ["ada"]}))[:2] == (409, "role")
    assert refused(rest.post("/api/v1/groups/", {"name": "Admin"}))[:2] == (409, "name_taken")
    assert role_of(ada) is Role.USER


def test_an_allowance_is_given_changed_and_taken_away(rest, ada, gpu):
    path = "/api/v1/people/ada/allowance/"
    given = rest.patch(path, {"gpu_memory": "40GiB", "images": ["lab/*"], "gpus": ["GPU-0"], "gib_hours": 2.5}).json()
    assert (given["person"], given["group"], given["gpu_memory"], given["images"]) == ("ada", None, 40 * GIB, ["lab/*"])
    assert rest.patch(path, {"gpu_memory": None, "containers": 3}).json()["gib_hours"] == 2.5
    person = rest.get("/api/v1/people/ada/").json()
    assert (person["limits"]["containers"], person["limits"]["gpu_memory"]) == (3, None)
    assert person["sources"]["containers"]["explanation"] == "Set for this person."
    assert last_entry().detail["before"] == {"gpu_memory": 40 * GIB, "containers": None}
    assert rest.get("/api/v1/allowances/").json()["count"] == 1
    assert rest.delete(path).status_code == 204
    assert not Allowance.objects.exists()
    assert last_entry().action == "allowance-withdrawn"
    assert rest.delete(path).status_code == 204  # there is none, as was asked for
    assert audit.verify()[1] == []


def test_a_roles_allowance_is_given_like_a_groups(rest, ada):
    assert rest.patch("/api/v1/groups/user/allowance/", {"containers": 1}).json()["group"] == "user"
    assert rest.get("/api/v1/people/ada/").json()["sources"]["containers"] == {
        "kind": "role",
        "groups": ["user"],
        "explanation": "From the role user.",
    }


@pytest.mark.parametrize(
    "body",
    [
        {"gpu_memory": "lots"},
        {"gpu_memory": "2"},
        {"gpu_memory": 2},
        {"gpu_memory": -1},
        {"gpu_memory": 2**63},
        {"gpu_memory": "9999999999TiB"},
        {"gpu_memory": True},
        {"containers": -1},
        {"containers": 2**40},
        {"containers": 1.5},
        {"gib_hours": float("inf")},
        {"gib_hours": -1},
        {"gib_hours": 1e300},
        {"priority_lowest": 101},
        {"priority_lowest": 5, "priority_highest": 1},
        {"compute_weight": 0},
        {"compute_limit": 101},
        {"images": "lab/*"},
        {"images": [""]},
        {"images": ["a\0"]},
        {"images": ["\ud800"]},
        {"images": [1]},
        {"images": ["x"] * 101},
        {"images": ["x" * 256]},
        {"gpus": ["GPU-nowhere"]},
        {"gpus": {}},
        {},
        {"x": 1},
    ],
)
def test_an_allowance_that_makes_no_sense_is_refused_and_nothing_is_made(rest, ada, gpu, body):
    answer = raw(rest, "PATCH", "people/ada/allowance/", body)
    assert answer.status_code == 400, answer.content
    assert not Allowance.objects.exists()


def test_the_page_of_people_shows_what_each_group_gives_and_that_some_give_nothing(boss):
    browser = signed_in(boss)
    Allowance.objects.create(group=Group.objects.create(name="vision"), gpu_memory=40 * GIB)
    row = re.compile(r'data-label="(?:GPU memory|Container) limit">([^<]*)<')
    assert row.findall(browser.get("/people/").content.decode()) == ["–", "–", "40 GiB", "no limit"]
