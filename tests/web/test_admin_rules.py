"""The admin site is held to the same rules: the last admin stays one, who is switched off has nothing left."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from tests.support.people import make_user
from web.models import AuditEntry, Token
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
        browser.post(f"/admin/auth/group/{group.pk}/delete/", {"post": "yes"}, follow=True).content.decode(),
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
