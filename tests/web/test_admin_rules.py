"""The admin site is held to the same rules: the last admin stays one, who is switched off has nothing left."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from tests.support.people import make_user
from web.models import Allowance, AuditEntry, Token
from web.people import tokens
from web.people.roles import Role, role_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def root():
    return make_user("root", Role.ADMIN)


@pytest.fixture
def browser(root):
    browser = Client()
    browser.force_login(root)
    return browser


def save(browser, user, **fields):
    form = {"username": user.username, "date_joined_0": "2026-11-20", "date_joined_1": "12:00:00", **fields}
    return browser.post(f"/admin/auth/user/{user.pk}/change/", form, follow=True).content.decode()


def test_the_last_admin_cannot_be_lowered_switched_off_or_deleted(browser, root):
    group = Group.objects.get(name="admin")
    for page in (
        save(browser, root, is_active="on"),
        save(browser, root, groups=[group.pk]),
        browser.post(f"/admin/auth/user/{root.pk}/delete/", {"post": "yes"}, follow=True).content.decode(),
        browser.post("/admin/auth/user/", {"action": "delete_selected", "_selected_action": [root.pk], "post": "yes"},
                     follow=True).content.decode(),
    ):  # fmt: skip
        assert "nobody who may manage people" in page
        assert "successfully" not in page
    root.refresh_from_db()
    assert root.is_active
    assert role_of(root) is Role.ADMIN
    assert not AuditEntry.objects.filter(action="user").exists()


def test_with_another_admin_all_of_that_can_be_done(browser, root):
    make_user("deputy", Role.ADMIN)
    save(browser, root, is_active="on")
    assert role_of(User.objects.get(pk=root.pk)) is not Role.ADMIN


def test_who_is_switched_off_there_has_no_token_and_no_session(browser, ada):
    tokens.make(ada)
    theirs = Client()
    theirs.force_login(ada)
    save(browser, ada, groups=[Group.objects.get(name="user").pk])
    assert not Token.objects.filter(user=ada).exists()
    assert AuditEntry.objects.filter(action="token", actor="root", detail__did="deleted").exists()
    User.objects.filter(pk=ada.pk).update(is_active=True)
    assert theirs.get("/").status_code == 302
    assert browser.get("/admin/").status_code == 200


def errors(answer):
    """By field, of a form that was shown again."""
    assert answer.status_code == 200, answer
    return {name: " ".join(found) for name, found in answer.context["adminform"].form.errors.items()}


def rename(browser, user, name):
    form = {"username": name, "date_joined_0": "2026-11-20", "date_joined_1": "12:00:00", "is_active": "on"}
    return browser.post(f"/admin/auth/user/{user.pk}/change/", form)


def test_a_person_is_given_no_name_there_that_rest_refuses(browser, ada):
    make_user("bob")
    password = {"usable_password": "true", "password1": "sdfjh3742sd", "password2": "sdfjh3742sd"}
    for name in ("..", ".", "ADA", "a/b"):
        assert "username" in errors(browser.post("/admin/auth/user/add/", {"username": name, **password})), name
        if name != "ADA":
            assert "username" in errors(rename(browser, ada, name)), name
    assert 'an account "bob" already' in errors(rename(browser, ada, "BOB"))["username"]
    assert set(User.objects.values_list("username", flat=True)) == {"root", "ada", "bob"}
    assert rename(browser, ada, "Ada").status_code == 302  # their own, in another case
    assert browser.post("/admin/auth/user/add/", {"username": "eve", **password}).status_code == 302


def test_whose_name_was_bad_before_can_still_be_changed_otherwise(browser):
    old = make_user("..")
    save(browser, old, email="old@example.com")
    assert User.objects.get(pk=old.pk).email == "old@example.com"


@pytest.mark.parametrize("name", ["a/b", "..", "VISION", "ﬁ"])
def test_a_group_is_given_no_name_there_that_rest_refuses(browser, name):
    Group.objects.create(name="vision")
    other = Group.objects.create(name="other")
    for path in ("add", f"{other.pk}/change"):
        assert "name" in errors(browser.post(f"/admin/auth/group/{path}/", {"name": name}))
    assert browser.post(f"/admin/auth/group/{other.pk}/change/", {"name": "Other"}).status_code == 302
    assert not Group.objects.filter(name=name).exists()


def test_a_role_is_neither_renamed_nor_deleted_and_no_group_is_made_one(browser):
    eve = make_user("eve", Role.VIEWER)
    group, other = Group.objects.get(name="viewer"), Group.objects.create(name="other")
    assert "is a role" in errors(browser.post(f"/admin/auth/group/{group.pk}/change/", {"name": "lookers"}))["name"]
    assert "is a role" in errors(browser.post(f"/admin/auth/group/{other.pk}/change/", {"name": "operator"}))["name"]
    chosen = {"action": "delete_selected", "_selected_action": [group.pk, other.pk], "post": "yes"}
    for path, form in ((f"{group.pk}/delete/", {"post": "yes"}), ("", chosen)):
        page = browser.post(f"/admin/auth/group/{path}", form, follow=True).content.decode()
        assert "is a role: it stays" in page
        assert "successfully" not in page
    assert {"viewer", "other"} <= set(Group.objects.values_list("name", flat=True))
    assert role_of(User.objects.get(pk=eve.pk)) is Role.VIEWER
    assert not AuditEntry.objects.filter(action__in=["group", "admin-deleted"]).exists()
    assert browser.post(f"/admin/auth/group/{other.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Group.objects.filter(name="other").exists()


@pytest.mark.parametrize(
    ("field", "typed"),
    [("gpu_memory", "40"), ("priority_highest", "5000"), ("containers", "5000000"), ("compute_weights", "2000000"),
     ("gib_hours", "1e300"), ("images", '[""]'), ("gpus", '["GPU-mistyped"]'), ("gpus", '["7"]')],
)  # fmt: skip
def test_an_allowance_that_rest_refuses_is_refused_beside_its_field(browser, ada, gpu, field, typed):
    assert list(errors(browser.post("/admin/web/allowance/add/", {"user": ada.pk, field: typed}))) == [field]
    assert not Allowance.objects.exists()


def test_an_allowance_is_kept_as_rest_keeps_it(browser, ada, gpu):
    form = {"user": ada.pk, "gpus": '["0"]', "images": '[" lab/*", "lab/*"]'}
    assert browser.post("/admin/web/allowance/add/", form).status_code == 302
    row = Allowance.objects.get()
    assert (row.gpus, row.images) == ([gpu.uuid], ["lab/*"])


def test_what_of_an_allowance_is_not_changed_stays_though_it_would_be_refused_now(browser, ada, gpu):
    row = Allowance.objects.create(user=ada, gpu_memory=40, gpus=["GPU-gone"])
    form = {"user": ada.pk, "gpu_memory": "40", "gpus": f'["GPU-gone", "{gpu.uuid}"]', "images": "null"}
    assert browser.post(f"/admin/web/allowance/{row.pk}/change/", form).status_code == 302
    row.refresh_from_db()
    assert (row.gpu_memory, row.gpus) == (40, ["GPU-gone", gpu.uuid])
