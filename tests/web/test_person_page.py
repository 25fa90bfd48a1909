"""By person: their page for whoever may look, what finds theirs alone, and what stops theirs alone."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.support import rows
from tests.support.people import signed_in
from tests.support.site import person
from web.models import Command, Container
from web.pages import actions

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab():
    card, ada, dora = rows.gpu(), person("ada"), person("dora")
    rows.container("adapter-tune", dora, card, quota=2, used=1.5)
    rows.container("small", ada, card, used=0.2)
    rows.container("large", ada, card, quota=2, used=1)
    rows.container("second", ada, card, suspended_since=rows.ago(50), queue_position=2)
    rows.container("first", dora, card, suspended_since=rows.ago(9), queue_position=1)
    rows.container("over", ada, card, finished_at=rows.ago(5), exit_code=0)


def asker(name, role="user") -> Client:
    return signed_in(person(name, role))


def names(answer):
    return [item["name"] for item in answer.context["page"].items]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ["adapter-tune", "large", "small", "first", "second", "over"]),  # holders by size, waiters by place
        ({"q": "ada"}, ["large", "small", "second", "over"]),  # a whole name is that person, not "adapter-tune" too
        ({"q": "ADA"}, ["large", "small", "second", "over"]),
        ({"q": "adap"}, ["adapter-tune"]),
        ({"owner": "dora"}, ["adapter-tune", "first"]),
        ({"owner": "dora", "q": "ada"}, ["adapter-tune"]),
        ({"mine": "1"}, ["large", "small", "second", "over"]),
        ({"owner": "nobody"}, []),
    ],
)
def test_containers_are_found_by_their_owner(lab, asked, found):
    assert names(asker("ada").get("/", asked)) == found


@pytest.mark.parametrize(
    ("who", "role", "stops", "knows_limits", "manages"),
    [
        ("eve", "viewer", False, False, False),
        ("dora", "user", False, False, False),
        ("ada", "user", True, True, False),
        ("op", "operator", True, False, False),
        ("boss", "admin", True, True, True),
    ],
)
def test_a_persons_page_is_for_everybody_who_may_look(lab, who, role, stops, knows_limits, manages):
    answer = asker(who, role).get("/people/ada/")
    text = answer.content.decode()
    assert names(answer) == ["large", "small", "second", "over"]
    assert ('data-owner="ada"' in text) == stops
    assert ("Current limits" in text) == knows_limits
    assert ("Disable the account" in text) == manages
    changed = asker(who, role).post("/people/ada/", {"do": "active", "active": "yes"})
    assert changed.status_code == (302 if manages else 403)


def test_who_has_nothing_is_no_others_business(lab):
    person("lea")
    assert asker("ada").get("/people/lea/").status_code == 404
    assert asker("lea").get("/people/lea/").status_code == 200
    assert asker("boss", "admin").get("/people/lea/").status_code == 200


@pytest.mark.parametrize("page", ["/", "/incidents/?kind=exited", "/containers/{pk}/"])
def test_a_name_leads_to_the_person(lab, page):
    pk = Container.objects.get(name="over").pk
    assert '<a href="/people/ada/">ada</a>' in asker("op", "operator").get(page.format(pk=pk)).content.decode()


def test_stop_all_asks_each_to_end_before_it_is_killed_and_tells_how_many(lab, monkeypatch):
    monkeypatch.setattr(actions.steering, "wait_for", lambda command: command)
    monkeypatch.setattr(actions.steering, "settled", lambda command: True)
    theirs = [str(pk) for pk in Container.objects.live().filter(owner__username="ada").values_list("pk", flat=True)]
    answer = asker("op", "operator").post("/containers/act/", {"action": "stop", "id": theirs, "note": "exams"})
    assert "3 containers stopped." in answer.content.decode()
    kills = Command.objects.filter(kind="kill")
    assert {(each.container.owner.username, each.arguments["grace"], each.note) for each in kills} == {
        ("ada", 10.0, "exams")
    }
    refused = asker("dora").post("/containers/act/", {"action": "kill", "id": theirs}).content.decode()
    assert "0 containers killed. 3 refused:" in refused


def test_the_page_of_a_role_lists_whoever_has_it(db):
    """It named the members of a group alone, and the page People counted those who have the role by default as well."""
    boss = asker("boss", "admin")
    person("ada")
    User.objects.create_user("newcomer")  # in no group: the role is theirs by default
    groups = {group.name: group.members for group in boss.get("/people/").context["groups"]}
    assert boss.get("/groups/user/").context["members"] == ["ada", "newcomer"]
    assert groups["user"] == 2
