"""Me: what I may use and where it comes from, my week, my tokens, my password."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import GIB, make_container
from tests.support.people import client_for, make_user, signed_in
from web import audit
from web.models import Allowance, AuditEntry, Container, Scope, Token
from web.people import passwords, tokens
from web.people.roles import Role
from web.people.signin import FAILURES

pytestmark = pytest.mark.django_db

OLD, NEW = "correct horse battery", "staple horse battery ☃"


@pytest.fixture
def browser(ada):
    return signed_in(ada)


def with_password(name: str = "bob") -> tuple[User, Client]:
    user = make_user(name, password=OLD)
    browser = Client()
    assert browser.login(username=name, password=OLD)
    return user, browser


def limits_on(page) -> dict[str, dict]:
    return {row["name"]: row for row in page.context["limits"]}


def test_each_limit_says_what_of_it_is_in_use_and_where_it_comes_from(browser, ada, gpu):
    make_container(ada, "a", gpu, quota=3 * GIB)
    vision = Group.objects.create(name="vision")
    ada.groups.add(vision)
    Allowance.objects.create(user=ada, gpu_memory=4 * GIB)
    Allowance.objects.create(group=vision, containers=3, priority_highest=5, images=["lab/*"])
    Allowance.objects.create(group=Group.objects.get(name="user"), containers=1, priority_highest=5)
    page = limits_on(browser.get("/me/"))
    assert (page["gpu_memory"]["used"], page["gpu_memory"]["most"]) == ("3 GiB", "4 GiB")
    assert page["gpu_memory"]["explanation"] == "Set for this person."
    assert (page["containers"]["used"], page["containers"]["most"]) == ("1", "3")
    assert page["containers"]["explanation"] == "From the group vision, the most generous."
    assert page["priority_highest"]["explanation"] == "From the group vision and the role user."
    images = page["images"]
    assert (images["most"], images["explanation"]) == ("no limit", "No limit, as the role user sets none.")
    assert page["gpus"]["explanation"] == "No limit is set."


def test_rest_tells_the_same(client, ada, gpu):
    Allowance.objects.create(user=ada, gpu_memory=4 * GIB)
    Allowance.objects.create(group=Group.objects.get(name="user"), containers=1)
    body = client.get("/api/v1/me/").json()
    sources = body["sources"]
    assert sources["gpu_memory"] == {"kind": "own", "groups": [], "explanation": "Set for this person."}
    assert sources["containers"] == {"kind": "role", "groups": ["user"], "explanation": "From the role user."}
    assert sources["images"]["kind"] == ""
    assert body["signs_in"] == "nowhere"


def test_what_the_explanation_names_is_what_binds(ada):
    """The explanation and the limit come from one place: whatever rows there are, they agree."""
    small, large = Group.objects.create(name="small"), Group.objects.create(name="large")
    ada.groups.add(small, large)
    Allowance.objects.create(group=small, gpu_memory=GIB, priority_lowest=-1)
    Allowance.objects.create(group=large, gpu_memory=4 * GIB, priority_lowest=-9)
    explained = client_for(ada).get("/api/v1/me/").json()
    assert explained["limits"]["gpu_memory"] == 4 * GIB
    assert explained["sources"]["gpu_memory"]["groups"] == ["large"]
    assert explained["sources"]["priority_lowest"]["groups"] == ["large"]
    assert "the most generous" in explained["sources"]["priority_lowest"]["explanation"]


def test_my_week(browser, client, ada, gpu):
    container = make_container(ada, "a", gpu)
    now = timezone.now()
    Container.objects.update(created_at=now - timedelta(hours=5))
    append(container, now - timedelta(hours=3), EventKind.ACCEPTED, gpu, used_after=GIB)
    append(container, now - timedelta(hours=1), EventKind.FREED, gpu, used_after=0)
    week = client.get("/api/v1/me/").json()["week"]
    assert week["vram_gib_hours"] == pytest.approx(2, abs=0.01)
    assert (week["containers"], week["gpu_hours"]) == (1, None)
    assert browser.get("/me/").context["week"]["vram_gib_hours"] == pytest.approx(2, abs=0.01)


def test_only_my_containers(browser, ada, gpu):
    make_container(ada, "mine", gpu)
    make_container(make_user("bob"), "theirs", gpu)
    content = browser.get("/me/").content.decode()
    assert "mine" in content
    assert "theirs" not in content


def test_a_token_is_made_shown_once_and_ended(browser, ada):
    page = browser.post("/me/tokens/", {"name": "wall ☃", "scope": "read", "expires_in": "86400"})
    (key,) = re.findall(r"gps_[\w-]+", page.content.decode())
    token = tokens.find(key)
    assert (token.user, token.name, token.scope) == (ada, "wall ☃", Scope.READ)
    assert token.expires_at - timezone.now() == pytest.approx(timedelta(days=1), abs=timedelta(minutes=1))
    assert "no-store" in page["Cache-Control"]
    assert key not in browser.get("/me/").content.decode()
    assert "is ended" in browser.post(f"/me/tokens/{token.pk}/end/").content.decode()
    assert not Token.objects.filter(pk=token.pk).exists()
    assert set(AuditEntry.objects.values_list("action", flat=True)) >= {"token-made", "token-ended"}


def test_nobody_ends_anothers_token_by_the_page(browser):
    token, _ = tokens.make(make_user("bob"))
    assert "ended already" in browser.post(f"/me/tokens/{token.pk}/end/").content.decode()
    assert Token.objects.filter(pk=token.pk).exists()


@pytest.mark.parametrize(
    "form",
    [{"scope": "admin"}, {"name": "x" * 101}, {"expires_in": "99999999999"}, {"expires_in": "-1"},
     {"expires_in": "1e9"}, {"expires_in": "٣"}, {"expires_in": "9" * 400}, {"expires_in": "0"}],
)  # fmt: skip
def test_a_token_that_makes_no_sense_is_refused_in_words(browser, form):
    page = browser.post("/me/tokens/", {"name": "kept as typed", **form})
    assert 'role="alert"' in page.content.decode()
    assert "name" in form or "kept as typed" in page.content.decode()
    assert not Token.objects.exists()


def test_a_password_is_changed_with_its_entry_in_the_audit_log_or_not_at_all(gpu, monkeypatch):
    """As where the web side is killed between the two."""
    user, browser = with_password()
    monkeypatch.setattr(audit, "append", _killed)
    with pytest.raises(Killed):
        browser.post("/me/password/", {"old": OLD, "new": NEW, "again": NEW})
    user.refresh_from_db()
    assert user.check_password(OLD)


class Killed(Exception):
    pass


def _killed(*_: object, **__: object) -> None:
    raise Killed


def test_a_password_is_changed_and_other_sessions_end(gpu):
    user, browser = with_password()
    _, elsewhere = with_password_again(user)
    _, key = tokens.make(user)
    answer = browser.post("/me/password/", {"old": OLD, "new": NEW, "again": NEW})
    assert (answer.status_code, answer["Location"]) == (302, "/me/")
    assert browser.get("/me/").status_code == 200
    assert elsewhere.get("/me/").status_code == 302
    assert tokens.find(key).user == user
    user.refresh_from_db()
    assert user.check_password(NEW)
    entry = AuditEntry.objects.get(action="password-changed")
    assert (entry.actor, entry.subject) == ("bob", "bob")
    assert NEW not in str(list(AuditEntry.objects.values()))


def with_password_again(user: User) -> tuple[User, Client]:
    browser = Client()
    assert browser.login(username=user.username, password=OLD)
    return user, browser


@pytest.mark.parametrize(
    ("form", "words"),
    [({"old": "wrong"}, "not your current password"), ({"new": "short", "again": "short"}, "too short"),
     ({"again": "another one"}, "two passwords differ"), ({"new": "", "again": ""}, "blank"),
     ({"new": "x" * 5000, "again": "x" * 5000}, "no more than 4096")],
)  # fmt: skip
def test_a_password_that_cannot_be_changed_stays(gpu, form, words):
    user, browser = with_password()
    page = browser.post("/me/password/", {"old": OLD, "new": NEW, "again": NEW, **form})
    assert page.status_code in (400, 403)
    assert words in page.content.decode()
    user.refresh_from_db()
    assert user.check_password(OLD)


def test_old_passwords_cannot_be_tried_without_end():
    user, browser = with_password()
    for _ in range(FAILURES):
        assert browser.post("/me/password/", {"old": "wrong", "new": NEW, "again": NEW}).status_code == 403
    assert browser.post("/me/password/", {"old": OLD, "new": NEW, "again": NEW}).status_code == 429
    user.refresh_from_db()
    assert user.check_password(OLD)


def test_rest_changes_a_password_too():
    user = make_user("bob", password=OLD)
    rest = client_for(user)
    refused = rest.post("/api/v1/me/password/", {"old": "wrong", "new": NEW})
    assert (refused.status_code, refused.json()["error"]["field"]) == (403, "old")
    assert rest.post("/api/v1/me/password/", {"old": OLD, "new": "no\0ne at all"}).status_code == 400
    assert rest.post("/api/v1/me/password/", {"old": OLD, "new": NEW}).status_code == 204
    user.refresh_from_db()
    assert user.check_password(NEW)


@pytest.mark.parametrize(
    ("elsewhere", "kind", "words"),
    [({"LDAP": {"AUTH_LDAP_SERVER_URI": "ldaps://directory.lab"}}, "ldap", "ldaps://directory.lab"),
     ({}, "nowhere", "An admin can set one")],
)  # fmt: skip
def test_who_signs_in_elsewhere_sees_where(settings, elsewhere, kind, words):
    for name, value in elsewhere.items():
        setattr(settings, name, value)
    user = make_user("lea")
    user.set_unusable_password()
    user.save()
    page = signed_in(user).get("/me/").content.decode()
    assert words in page
    assert 'name="old"' not in page
    refused = client_for(user).post("/api/v1/me/password/", {"old": "x", "new": NEW})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "password_elsewhere")
    assert words in refused.json()["error"]["message"]
    assert passwords.place(user).kind == kind


def test_who_signs_in_at_a_provider_sees_which(settings, ada):
    settings.OIDC = {"GPUSHARE_OIDC_ISSUER": "https://id.lab"}
    where = passwords.place(ada)
    assert where.kind == "oidc"
    assert "https://id.lab" in where.advice


def test_the_name_in_the_frame_leads_to_me_for_everybody(db):
    for role in Role:
        browser = signed_in(make_user(f"some-{role.group}", role))
        assert '<a class="who" href="/me/"' in browser.get("/queue/").content.decode()
        assert browser.get("/me/").status_code == 200
