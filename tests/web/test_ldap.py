"""Sign-in against a real LDAP server."""

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from rest_framework.test import APIClient

from appliance import directory
from tests.support.people import make_user
from tests.support.slapd import SLAPD, running_slapd
from web.models import AuditEntry
from web.people.roles import Role, role_of

pytest.importorskip("django_auth_ldap", reason="needs the extra 'signin'")
pytestmark = [
    pytest.mark.production,
    pytest.mark.django_db,
    pytest.mark.skipif(SLAPD is None, reason="needs the distribution's slapd"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_slapd(tmp_path_factory.mktemp("slapd")) as url:
        yield url


@pytest.fixture
def ldap(server, settings):
    environment = {
        "GPUSHARE_LDAP_URL": server,
        "GPUSHARE_LDAP_PEOPLE": "dc=lab",
        "GPUSHARE_LDAP_GROUPS": "dc=lab",
        "GPUSHARE_LDAP_BIND_DN": "cn=reader,dc=lab",
        "GPUSHARE_LDAP_BIND_PASSWORD": "reads",
    }
    for name, value in directory.ldap(environment).items():
        setattr(settings, name, value)
    settings.GPUSHARE_GROUPS = directory.group_map("gpu-operators=operator vision")
    settings.AUTHENTICATION_BACKENDS = [*settings.AUTHENTICATION_BACKENDS, "web.people.directory.ldap.Backend"]


def sign_in(username: str, password: str) -> int:
    body = {"username": username, "password": password}
    return APIClient().post("/api/v1/sign-in/", body, format="json").status_code


def test_somebody_from_the_directory_signs_in_and_is_made_known(ldap):
    assert sign_in("grace", "compiles") == 201
    grace = User.objects.get(username="grace")
    assert (grace.first_name, grace.last_name, grace.email) == ("Grace", "Hopper", "grace@lab")
    assert not grace.has_usable_password()
    assert AuditEntry.objects.filter(actor="grace", action="sign-in").exists()


def test_a_wrong_or_an_empty_password_does_not(ldap):
    assert sign_in("grace", "wrong") == 401
    assert sign_in("grace", "") == 400
    assert sign_in("grace)(uid=*", "compiles") == 401
    assert not User.objects.exists()


def test_groups_mean_roles_only_where_that_was_said(ldap):
    sign_in("grace", "compiles")
    grace = User.objects.get(username="grace")
    # She is in the directory's group "admin" as well, which means nothing here.
    assert role_of(grace) is Role.OPERATOR


def test_who_left_a_group_of_the_directory_leaves_it_here(ldap):
    sign_in("grace", "compiles")
    grace = User.objects.get(username="grace")
    grace.groups.add(*(Group.objects.create(name=name) for name in ("vision", "friends")))
    sign_in("grace", "compiles")
    assert set(grace.groups.values_list("name", flat=True)) == {"operator", "friends"}
    assert AuditEntry.objects.filter(action="groups").last().detail == {
        "before": ["operator", "vision"],
        "after": ["operator"],
    }


def test_the_directory_cannot_take_over_an_account_of_ours(ldap):
    make_user("admin", Role.ADMIN, password="ours", is_superuser=True)
    assert sign_in("admin", "not yours") == 401
    assert sign_in("admin", "ours") == 201


def test_a_server_that_is_away_lets_nobody_in_and_locals_still_can(ldap, settings):
    settings.AUTH_LDAP_SERVER_URI = "ldap://127.0.0.1:1"
    make_user("bob", password="right")
    assert sign_in("grace", "compiles") == 401
    assert sign_in("bob", "right") == 201


@pytest.mark.parametrize("typed", ["GRACE", "ｇｒａｃｅ", "ⓖrace"])
def test_however_a_name_is_typed_it_is_one_account(ldap, typed):
    assert sign_in(typed, "compiles") == 201
    assert sign_in("grace", "compiles") == 201
    assert [user.username for user in User.objects.all()] == ["grace"]


def test_however_a_name_is_typed_an_account_of_ours_stays_ours(ldap):
    make_user("admin", Role.ADMIN, password="ours")
    assert sign_in("ａdmin", "not yours") == 401
    assert User.objects.count() == 1


def test_a_filter_that_only_holds_the_name_gives_one_account_too(ldap, settings):
    settings.AUTH_LDAP_USER_SEARCH = directory.ldap(
        {"GPUSHARE_LDAP_URL": "-", "GPUSHARE_LDAP_PEOPLE": "dc=lab", "GPUSHARE_LDAP_FILTER": "(cn=%(user)s Hopper)"}
    )["AUTH_LDAP_USER_SEARCH"]
    assert [sign_in(name, "compiles") for name in ("ⓖrace", "Grace")] == [201, 201]
    assert [user.username for user in User.objects.all()] == ["grace"]


@pytest.mark.parametrize("typed", [("LIN", "torvalds"), ("torvalds", "lin")])
def test_an_entry_with_two_names_is_one_account_whichever_is_typed(ldap, typed):
    assert [sign_in(name, "penguins") for name in typed] == [201, 201]
    assert [user.username for user in User.objects.all()] == ["lin"]


def test_an_entry_that_gets_a_second_name_keeps_its_account(ldap):
    known = User.objects.create(username="torvalds")
    known.set_unusable_password()
    known.save()
    assert sign_in("lin", "penguins") == 201
    assert [user.username for user in User.objects.all()] == ["torvalds"]


def test_a_name_that_no_account_can_have_lets_nobody_in_and_the_log_says_why(ldap, caplog):
    assert sign_in("../root", "climbs") == 401
    assert "'../root' cannot be that of an account" in caplog.text
    assert not User.objects.exists()


def test_without_a_place_to_search_groups_they_stay_as_they_are(ldap, settings):
    settings.AUTH_LDAP_GROUP_SEARCH = settings.AUTH_LDAP_GROUP_TYPE = None
    assert sign_in("grace", "compiles") == 201
    grace = User.objects.get(username="grace")
    grace.groups.add(Group.objects.create(name="vision"))
    assert sign_in("grace", "compiles") == 201
    assert grace.groups.get().name == "vision"


def test_somebody_who_is_switched_off_here_neither_stays_nor_comes_back(ldap):
    browser = Client()
    browser.post("/login/", {"username": "grace", "password": "compiles"})
    assert browser.get("/").status_code == 200
    User.objects.update(is_active=False)
    assert browser.get("/").status_code == 302
    assert sign_in("grace", "compiles") == 401
