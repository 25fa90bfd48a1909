"""Accounts by REST: what an admin can do, what nobody can, and that all of it is recorded."""

import re
from threading import Barrier, Thread

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from tests.support.machine import make_container
from tests.support.people import last_entry, make_user, raw, refused, signed_in
from web import audit
from web.errors import Problem
from web.models import AuditEntry, Token
from web.people import accounts, tokens
from web.people.roles import Role, role_of

pytestmark = pytest.mark.django_db

PASSWORD = "a long enough password"


def test_an_account_is_made_and_signs_in_with_the_password_that_was_made_up(rest):
    Group.objects.create(name="vision")
    made = rest.post("/api/v1/people/", {"username": "ada@lab.example", "role": "operator", "groups": ["vision"]})
    body = made.json()
    assert (made.status_code, body["role"], body["groups"], body["signs_in"]) == (201, "operator", ["vision"], "here")
    signed_in = {"username": "ada@lab.example", "password": body["password"]}
    assert APIClient().post("/api/v1/sign-in/", signed_in, format="json").status_code == 201
    assert "password" not in rest.get("/api/v1/people/ada@lab.example/").json()
    entry = AuditEntry.objects.get(action="person-created")
    assert (entry.actor, entry.subject, entry.detail["password"]) == ("boss", "ada@lab.example", "made up")
    assert body["password"] not in str(list(AuditEntry.objects.values()))


def test_an_account_without_a_password_signs_in_nowhere_here(rest):
    made = rest.post("/api/v1/people/", {"username": "lea", "password": None}).json()
    assert (made["password"], made["signs_in"], made["role"]) == (None, "nowhere", "user")


@pytest.mark.parametrize("name", ["ünï.cødé", "数学", "a@b.example", "x" * 150, "a+b-c_d"])
def test_names_that_an_account_may_have(rest, name):
    assert rest.post("/api/v1/people/", {"username": name}).status_code == 201
    assert rest.get(f"/api/v1/people/{name}/").json()["username"] == name
    assert rest.patch(f"/api/v1/people/{name}/", {"role": "viewer"}).json()["role"] == "viewer"
    assert audit.verify()[1] == []


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "..", ".", "a\0b", "a\ud800b", "x" * 151, "ｆｕｌｌ", "a\nb", "<script>", 5, None, ["a"]],
)
def test_names_that_no_account_may_have(rest, boss, name):
    before = User.objects.count()
    assert raw(rest, "POST", "people/", {"username": name}).status_code == 400
    assert User.objects.count() == before


# In another case, with a letter that has the same capital, or that looks the same.
TAKEN = [("éva", "ÉVA"), ("admin", "admın"), ("admin", "ADMİN"), ("aca", "аса"), ("straße", "STRASSE"), ("σας", "ΣΑΣ")]
MIXED = ["аdmin", "pаul", "αlice", "lee數а"]


@pytest.mark.parametrize(("one", "other"), [*TAKEN, *(names[::-1] for names in TAKEN)])
def test_of_two_names_that_people_or_databases_take_for_one_there_is_one(rest, one, other):
    assert rest.post("/api/v1/people/", {"username": one}).status_code == 201
    assert refused(rest.post("/api/v1/people/", {"username": other})) == (409, "name_taken", "username")
    assert rest.post("/api/v1/groups/", {"name": f"{one}-{one}"}).status_code == 201
    assert refused(rest.post("/api/v1/groups/", {"name": f"{other}-{other}"})) == (409, "name_taken", "name")


@pytest.mark.parametrize("name", MIXED)
def test_a_name_has_the_letters_of_one_script(rest, name):
    for path, field in (("people", "username"), ("groups", "name")):
        answer = rest.post(f"/api/v1/{path}/", {field: name})
        assert refused(answer) == (400, "invalid", field)
        assert re.search(r"mixes .*(Cyrillic|Greek).* letters", answer.json()["error"]["message"])


@pytest.mark.parametrize("name", ["アイ愛あ", "ann数学", "김철수", "ΣΩΚΡΆΤΗΣ", "иван", "ann-2@lab.example"])
def test_letters_that_are_written_together_are_a_name(rest, name):
    assert rest.post("/api/v1/people/", {"username": name}).status_code == 201


@pytest.mark.parametrize(("name", "words"), [("аdmin", "mixes"), ("BOSS", "boss"), ("a/b", "letters"), ("ﬁve", "five")])
def test_manage_py_makes_no_admin_of_a_name_that_rest_refuses(boss, monkeypatch, name, words):
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", PASSWORD)
    with pytest.raises(CommandError, match=words):
        call_command("createsuperuser", interactive=False, username=name, email="a@example.org")
    assert User.objects.count() == 1
    call_command("createsuperuser", interactive=False, username="second", email="a@example.org")
    assert role_of(User.objects.get(username="second")) is Role.ADMIN


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"role": "god"}, "role"),
        ({"active": "no"}, "active"),
        ({"email": "nobody"}, "email"),
        ({"password": "short"}, "password"),
        ({"groups": ["nowhere"]}, "groups"),
        ({"groups": ["admin"]}, "groups"),
        ({"superuser": True}, "superuser"),
        ({}, ""),
        ({"password": "x" * 5000}, "password"),
        ({"email": "a@" + "x" * 300}, "email"),
        ({"groups": "vision"}, "groups"),
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(rest, ada, body, field):
    rest.get("/api/v1/me/")  # uses the token, which is noted
    entries = AuditEntry.objects.count()
    status, _, culprit = refused(rest.patch("/api/v1/people/ada/", body))
    assert (status, culprit) == (400, field)
    assert AuditEntry.objects.count() == entries
    assert role_of(ada) is Role.USER


def test_of_several_changes_one_that_is_refused_undoes_the_others(rest, ada):
    assert (
        rest.patch("/api/v1/people/ada/", {"role": "admin", "email": "ada@lab.example", "groups": ["x"]}).status_code
        == 400
    )
    ada.refresh_from_db()
    assert (role_of(ada), ada.email) == (Role.USER, "")


def test_another_role_takes_the_old_one_away(rest, ada):
    for role in ("operator", "viewer", "admin", "user"):
        assert rest.patch("/api/v1/people/ada/", {"role": role}).json()["role"] == role
        assert list(ada.groups.values_list("name", flat=True)) == [role]
    assert last_entry().detail == {"before": {"role": "admin"}, "after": {"role": "user"}}
    assert (last_entry().actor, last_entry().subject) == ("boss", "ada")


def test_a_superuser_who_is_given_a_lower_role_has_it(rest):
    root = User.objects.create_superuser("root")
    assert rest.patch("/api/v1/people/root/", {"role": "user"}).json()["role"] == "user"
    root.refresh_from_db()
    assert role_of(root) is Role.USER


def test_the_last_admin_stays_one(rest, boss):
    for body in ({"role": "operator"}, {"active": False}):
        assert refused(rest.patch("/api/v1/people/boss/", body))[:2] == (409, "last_admin")
    boss.refresh_from_db()
    assert boss.is_active
    assert role_of(boss) is Role.ADMIN
    assert Token.objects.filter(user=boss).exists()  # nothing of it was done
    make_user("deputy", Role.ADMIN)
    assert rest.patch("/api/v1/people/boss/", {"role": "operator"}).status_code == 200
    assert rest.get("/api/v1/people/").status_code == 403


@pytest.mark.django_db(transaction=True)
def test_of_two_admins_who_lower_each_other_at_once_one_stays():
    first, second = make_user("first", Role.ADMIN), make_user("second", Role.ADMIN)
    together, answers = Barrier(2), []

    def lower(actor: User, other: User) -> None:
        together.wait()
        try:
            accounts.change(actor, other, {"role": "user"})
            answers.append("done")
        except Problem as problem:
            answers.append(problem.code)
        finally:
            connections.close_all()

    threads = [Thread(target=lower, args=pair) for pair in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers.count("done") == 1
    assert set(answers) <= {"done", "last_admin", "forbidden"}
    assert [role_of(user) for user in (first, second)].count(Role.ADMIN) == 1


def test_an_admin_who_is_switched_off_is_none(rest):
    make_user("deputy", Role.ADMIN, is_active=False)
    assert refused(rest.patch("/api/v1/people/boss/", {"role": "user"}))[1] == "last_admin"


def test_where_everybody_is_an_admin_by_default_one_of_them_is_enough(rest, settings):
    settings.GPUSHARE_DEFAULT_ROLE = "admin"
    User.objects.create_user("anybody")
    assert rest.patch("/api/v1/people/boss/", {"role": "user"}).status_code == 200


def test_switching_somebody_off_ends_their_tokens_and_sessions_and_not_their_containers(rest, gpu):
    bob = make_user("bob", password=PASSWORD)
    container = make_container(bob, "a", gpu)
    browser = Client()
    assert browser.login(username="bob", password=PASSWORD)
    other = signed_in(make_user("eve"))
    _, key = tokens.make(bob)
    assert rest.patch("/api/v1/people/bob/", {"active": False}).json()["active"] is False
    assert not Token.objects.filter(user=bob).exists()
    assert {session.get_decoded()["_auth_user_id"] for session in Session.objects.all()} != {str(bob.pk)}
    assert browser.get("/").status_code == 302
    assert other.get("/").status_code == 200
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {key}")
    assert client.get("/api/v1/me/").status_code == 401
    assert not Client().login(username="bob", password=PASSWORD)
    container.refresh_from_db()
    assert container.finished_at is None
    assert AuditEntry.objects.filter(action="token-ended", actor="boss").exists()
    rest.patch("/api/v1/people/bob/", {"active": True})
    assert browser.get("/").status_code == 302  # what was ended stays so
    assert client.get("/api/v1/me/").status_code == 401


def test_a_password_that_an_admin_sets_ends_the_sessions(rest):
    bob = make_user("bob", password=PASSWORD)
    browser = Client()
    assert browser.login(username="bob", password=PASSWORD)
    assert rest.patch("/api/v1/people/bob/", {"password": "another long one"}).status_code == 200
    assert browser.get("/").status_code == 302
    bob.refresh_from_db()
    assert bob.check_password("another long one")
    assert last_entry().action == "password-set"


def test_people_are_listed_searched_and_paged(rest, django_assert_max_num_queries):
    for number in range(30):
        make_user(f"student-{number:02}", email=f"s{number}@lab.example")
    page = rest.get("/api/v1/people/", {"q": "student", "page_size": 7}).json()
    assert (page["count"], len(page["results"])) == (30, 7)
    assert [each["username"] for each in rest.get("/api/v1/people/", {"q": "s3@"}).json()["results"]] == ["student-03"]
    assert rest.get("/api/v1/people/", {"group": "admin"}).json()["count"] == 1
    assert rest.get("/api/v1/people/", {"active": "false"}).json()["count"] == 0
    assert rest.get("/api/v1/people/", {"q": "a\0b"}).status_code == 400
    with django_assert_max_num_queries(12):
        rest.get("/api/v1/people/", {"page_size": 1000})


def test_a_person_sees_which_groups_a_directory_decides_on(rest, settings):
    settings.GPUSHARE_GROUPS = {"gpu-admins": "admin"}
    rest.post("/api/v1/people/", {"username": "lea", "password": None})
    assert rest.get("/api/v1/people/lea/").json()["by_directory"] == ["admin"]
    assert rest.get("/api/v1/people/boss/").json()["by_directory"] == ["admin"]
    rest.post("/api/v1/people/", {"username": "local"})
    assert rest.get("/api/v1/people/local/").json()["by_directory"] == []


def test_the_list_counts_who_has_a_role_and_knows_who_uses_tokens(db):
    """An admin by superuser was no member of "admin", and whoever uses a token had "never signed in"."""
    root = User.objects.create_superuser("root")
    Group.objects.create(name="admin")
    program = make_user("program", Role.USER)
    token, _ = tokens.make(program)
    Token.objects.filter(pk=token.pk).update(last_used_at=timezone.now())
    answer = signed_in(root).get("/people/")
    assert {group.name: group.members for group in answer.context["groups"]}["admin"] == 1
    assert "by token 20" in answer.content.decode()
    menu = {item["label"] for item in answer.context["navigation"]}
    assert {"Nodes", "Audit", "Incidents"} <= menu


def test_of_several_roles_the_highest_counts(ada):
    ada.groups.set([Group.objects.get_or_create(name=role.group)[0] for role in (Role.USER, Role.OPERATOR)])
    assert role_of(User.objects.get(pk=ada.pk)) is Role.OPERATOR
