"""The admin site: people are managed there, what was observed is only shown, and all of it is recorded."""

from __future__ import annotations

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import Group, Permission, User
from django.test import Client

from tests.support.events import EventKind, append
from tests.support.machine import make_container
from tests.support.people import make_user
from web import audit
from web.models import Allowance, AuditEntry, Container
from web.people import tokens
from web.people.roles import Role, role_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser():
    browser = Client()
    browser.force_login(make_user("root", Role.ADMIN, is_staff=True, is_superuser=True))
    return browser


@pytest.mark.parametrize("model", [model for model in site._registry if model._meta.app_label == "web"])
def test_every_list_and_record_is_shown(browser, ada, gpu, model):
    container = make_container(ada, "a", gpu)
    append(container, container.created_at, EventKind.STARTED, gpu)
    container.commands.create(kind="pause", issued_by=ada)
    tokens.make(ada)
    Allowance.objects.create(user=ada, containers=1)
    path = f"/admin/web/{model._meta.model_name}/"
    assert browser.get(path).status_code == 200
    assert browser.get(f"{path}{model.objects.first().pk}/change/").status_code == 200


@pytest.mark.parametrize(
    "asked",
    ["created_at__year=1", "created_at__year=0", "created_at__year=-1", "created_at__year=9999",
     "created_at__year=10000", "created_at__gte=0001-01-01", "created_at__lt=9999-12-31+23:59:59-23:00",
     "created_at__gte=0001-01-01+00:00:00%2B23:00", "created_at__gte=x", "created_at__gte=%00", "created_at__day=99",
     "created_at__month=0", "created_at__date=0001-01-01", "created_at__isnull=maybe", "p=99999999999999999999", "p=-1",
     "o=99.-99.x", "all=", "q=%00", "q=%ED%A0%80", "engine__exact=%00", "e=1", "owner__password__startswith=p",
     "created_at__week_day=8", "_facets=True", "_to_field=owner__password"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:DateTimeField")  # of a time without a zone, from the address of a page
def test_no_question_to_a_list_is_a_failure(browser, ada, asked):
    make_container(ada, "a")
    answer = browser.get(f"/admin/web/container/?{asked}", follow=True)
    assert answer.status_code < 500
    assert (
        not answer.redirect_chain or "cannot be asked this" in answer.content.decode() or "e=1" in str(answer.request)
    )


@pytest.mark.parametrize("field", ["date_joined__year", "date_joined__gte", "last_login__lt", "groups__id__exact"])
@pytest.mark.parametrize("value", ["1", "9999", "0001-01-01", "9999-12-31", "%00", "1e400", "9" * 30])
@pytest.mark.filterwarnings("ignore:DateTimeField")
def test_no_question_to_the_list_of_people_is_a_failure(browser, field, value):
    assert browser.get(f"/admin/auth/user/?{field}={value}").status_code < 500


def test_what_was_observed_cannot_be_edited(browser, ada):
    container = make_container(ada, "a")
    path = f"/admin/web/container/{container.pk}"
    assert browser.post(f"{path}/change/", {"name": "b"}).status_code == 403
    assert browser.post(f"{path}/delete/", {"post": "yes"}).status_code == 403
    assert browser.get("/admin/web/auditentry/add/").status_code == 403
    assert Container.objects.get().name == "a"


def test_the_values_of_variables_are_not_shown(browser, ada):
    container = make_container(ada, "a", environment={"API_KEY": "hunter2"})
    assert "hunter2" not in browser.get(f"/admin/web/container/{container.pk}/change/").content.decode()


@pytest.mark.parametrize(
    ("role", "fields", "manages"),
    [(Role.ADMIN, {}, True), (Role.VIEWER, {"is_superuser": True}, True), (Role.OPERATOR, {"is_staff": True}, False)],
)
def test_who_manages_people_follows_from_the_role_alone(ada, role, fields, manages):
    """An admin by group, as a directory makes them, was not let in; Django's marks and rights let others in."""
    somebody = make_user("eve", role, password="right", **fields)
    if not manages:
        somebody.user_permissions.set(Permission.objects.all())
    browser = Client()
    browser.post("/admin/login/", {"username": "eve", "password": "right", "next": "/admin/"})
    browser.post("/admin/auth/group/add/", {"name": "vision"})
    assert browser.get("/admin/").status_code == (200 if manages else 302)
    assert Group.objects.filter(name="vision").exists() is manages


def test_giving_somebody_a_role_is_recorded(browser, ada):
    group = Group.objects.get_or_create(name=Role.OPERATOR.group)[0]
    form = {"username": "ada", "date_joined_0": "2026-11-20", "date_joined_1": "12:00:00", "is_active": "on",
            "groups": [group.pk]}  # fmt: skip
    answer = browser.post(f"/admin/auth/user/{ada.pk}/change/", form)
    assert answer.status_code == 302, answer.content
    assert role_of(User.objects.get(username="ada")) is Role.OPERATOR
    entry = AuditEntry.objects.latest("id")
    assert (entry.actor, entry.action) == ("root", "admin-changed")
    assert "ada" in entry.subject
    assert "Groups" in entry.detail["what"]
    assert audit.verify()[1] == []


def test_an_allowance_is_recorded_before_and_after(browser, ada):
    Allowance.objects.create(user=ada, containers=1)
    form = {"user": ada.pk, "containers": 3, "images": "null", "gpus": "null"}
    assert browser.post(f"/admin/web/allowance/{ada.allowance.pk}/change/", form).status_code == 302
    detail = AuditEntry.objects.get(action="allowance").detail
    assert (detail["before"]["containers"], detail["after"]["containers"]) == (1, 3)


@pytest.mark.parametrize("field", ["images", "gpus"])
@pytest.mark.parametrize(
    "value", ['"lab/*"', '""', "5", "0", "true", "false", "{}", '{"a": 1}', "[1]", "[null]", '[["a"]]', '["a\\u0000"]']
)
def test_an_allowance_of_images_or_gpus_is_a_list_of_texts(browser, ada, field, value):
    answer = browser.post("/admin/web/allowance/add/", {"user": ada.pk, field: value})
    assert answer.status_code == 200
    assert list(answer.context["adminform"].form.errors) == [field]
    assert "list of texts" in answer.content.decode()
    assert not Allowance.objects.exists()


@pytest.mark.parametrize(
    ("value", "images"),
    [('["lab/*", "local"]', ["lab/*", "local"]), ("[]", []), ("null", None), ("", None)],
)
def test_a_list_of_texts_is_kept_an_empty_one_allows_nothing_and_none_everything(browser, ada, value, images):
    assert browser.post("/admin/web/allowance/add/", {"user": ada.pk, "images": value}).status_code == 302
    assert Allowance.objects.get().images == images


@pytest.mark.parametrize("typed", [r'["\ud800"]', r'["a\u0000"]', '{"a": 1}', "no JSON", '["a\nb"]'])
def test_an_allowance_that_cannot_be_is_refused_beside_its_field_whatever_was_typed(browser, ada, typed):
    answer = browser.post("/admin/web/allowance/add/", {"user": ada.pk, "images": typed})
    assert answer.status_code == 200
    assert "images" in answer.context["adminform"].form.errors
    assert not Allowance.objects.exists()


def done(did: str, action: str = "") -> list[AuditEntry]:
    return [entry for entry in AuditEntry.objects.order_by("id") if entry.detail.get("did") == did
            and action in ("", entry.action)]  # fmt: skip


def selected(browser: Client, model: str, *rows: object) -> None:
    """As a person does who ticks rows in a list and deletes them."""
    form = {"action": "delete_selected", "_selected_action": [str(row.pk) for row in rows], "post": "yes"}
    answer = browser.post(f"/admin/{model}/", form)
    assert answer.status_code == 302, answer.content


def test_rows_deleted_together_are_each_recorded_with_what_was_there(browser, ada):
    bob = make_user("bob")
    for user, size in ((ada, 1), (bob, 2)):
        Allowance.objects.create(user=user, containers=size)
        tokens.make(user)
    selected(browser, "web/allowance", *Allowance.objects.all())
    selected(browser, "web/token", *ada.tokens.all())
    told = {
        (entry.actor, entry.subject, entry.detail["before"]["containers"]) for entry in done("deleted", "allowance")
    }
    assert told == {("root", "ada", 1), ("root", "bob", 2)}
    (token,) = done("deleted", "token")
    assert token.detail["before"]["digest"] == "…"
    selected(browser, "auth/user", bob)
    assert [entry.subject for entry in done("deleted", "user")] == ["bob"]
    assert [entry.subject for entry in done("deleted", "token")][1:] == ["bob: token"]  # it went along
    assert audit.verify()[1] == []


def test_groups_deleted_together_and_changed_memberships_are_recorded(browser, ada):
    made = [Group.objects.create(name=name) for name in ("one", "two")]
    form = {"username": "ada", "date_joined_0": "2026-11-20", "date_joined_1": "12:00:00", "is_active": "on",
            "groups": [made[0].pk]}  # fmt: skip
    assert browser.post(f"/admin/auth/user/{ada.pk}/change/", form).status_code == 302
    (added,) = done("groups added")
    assert (added.actor, added.action, added.subject, added.detail["which"]) == ("root", "user", "ada", ["one"])
    selected(browser, "auth/group", *made)
    assert {entry.detail["before"]["name"] for entry in done("deleted", "group")} == {"one", "two"}


def test_a_new_password_is_recorded_and_not_told(browser, ada):
    form = {"password1": "a long enough password", "password2": "a long enough password"}
    assert browser.post(f"/admin/auth/user/{ada.pk}/password/", form).status_code == 302
    entry = done("changed", "user")[-1]
    assert (entry.subject, entry.detail["after"]["password"]) == ("ada", "…")
    assert "pbkdf2" not in str(entry.detail)


def test_what_is_done_elsewhere_is_not_taken_for_an_admins_doing(browser, ada):
    Allowance.objects.create(user=ada, containers=1).delete()
    assert done("deleted") == done("added") == []
