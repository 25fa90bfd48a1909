from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from tests.support.people import client_for, make_user
from web import audit
from web.models import AuditEntry, SignInLink, Token
from web.people import links, tokens
from web.people.bootstrap import ensure_admin
from web.people.roles import Role

pytestmark = pytest.mark.django_db


def get(header: str | None) -> tuple[int, dict]:
    client = APIClient()
    if header is not None:
        client.credentials(HTTP_AUTHORIZATION=header)
    answer = client.get("/api/v1/containers/")
    return answer.status_code, answer.json()


@pytest.mark.parametrize("scheme", ["Token", "Bearer", "bearer"])
def test_a_token_opens_the_api(ada, scheme):
    _, key = tokens.make(ada)
    assert get(f"{scheme} {key}")[0] == 200


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "not_authenticated"),
        ("Token", "bad_token"),
        ("Token gps_wrong", "bad_token"),
        ("Token a b", "bad_token"),
        ("Token \xff", "bad_token"),
        ("Basic YTpi", "not_authenticated"),
    ],
)
def test_no_token_or_a_wrong_one_is_401(header, code):
    status, body = get(header)
    assert status == 401
    assert body["error"]["code"] == code


def test_an_expired_token_says_so(ada):
    _, key = tokens.make(ada, expires_at=timezone.now() - timedelta(seconds=1))
    status, body = get(f"Token {key}")
    assert (status, body["error"]["code"]) == (401, "token_expired")


def test_a_token_of_somebody_who_left_is_refused(ada):
    _, key = tokens.make(ada)
    User.objects.filter(pk=ada.pk).update(is_active=False)  # past the product: by a directory's script, say
    assert get(f"Token {key}")[1]["error"]["code"] == "user_inactive"
    ada.is_active = False
    ada.save(update_fields=["is_active"])  # whoever is switched off here has no token any more
    assert get(f"Token {key}")[1]["error"]["code"] == "bad_token"


def test_the_key_is_not_in_the_database(ada):
    _, key = tokens.make(ada)
    assert all(key not in str(value) for row in Token.objects.values() for value in row.values())


def test_use_is_noted_once_a_minute(ada, django_assert_num_queries):
    token, key = tokens.make(ada)
    tokens.find(key)
    token.refresh_from_db()
    assert token.last_used_at is not None
    with django_assert_num_queries(1):
        tokens.find(key)


def test_sign_in_gives_a_token_that_works():
    make_user("bob", password="correct horse")
    answer = APIClient().post("/api/v1/sign-in/", {"username": "bob", "password": "correct horse"}, format="json")
    assert answer.status_code == 201
    assert get(f"Token {answer.json()['key']}")[0] == 200
    assert AuditEntry.objects.filter(action="token-made", actor="bob").exists()


def test_a_wrong_password_is_401():
    make_user("bob", password="correct horse")
    answer = APIClient().post("/api/v1/sign-in/", {"username": "bob", "password": "battery"}, format="json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "bad_credentials")


def test_tokens_are_listed_and_ended_by_their_owner_alone(ada, client):
    other, _ = tokens.make(make_user("bob"))
    mine, key = tokens.make(ada)
    listed = client.get("/api/v1/tokens/").json()["results"]
    assert other.pk not in [token["id"] for token in listed]
    assert client.delete(f"/api/v1/tokens/{other.pk}/").status_code == 404
    assert client.delete(f"/api/v1/tokens/{mine.pk}/").status_code == 204
    assert get(f"Token {key}")[0] == 401


def test_an_admin_ends_a_token_of_somebody_else(ada):
    token, key = tokens.make(ada)
    root = make_user("root", Role.ADMIN)
    assert client_for(make_user("eve", Role.OPERATOR)).delete(f"/api/v1/tokens/{token.pk}/").status_code == 404
    assert {row["user"] for row in client_for(root).get("/api/v1/tokens/").json()["results"]} == {"root"}
    assert client_for(root).delete(f"/api/v1/tokens/{token.pk}/").status_code == 204
    assert get(f"Token {key}")[1]["error"]["code"] == "bad_token"
    entry = AuditEntry.objects.get(action="token-ended")
    assert (entry.actor, entry.detail["of"]) == ("root", "ada")


def test_a_token_that_expires_makes_none_that_outlives_it(ada):
    _, key = tokens.make(ada, expires_at=timezone.now() + timedelta(hours=1))
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {key}")
    assert client.post("/api/v1/tokens/", {}, format="json").status_code == 403
    assert client.post("/api/v1/tokens/", {"expires_in": 7200}, format="json").status_code == 403
    assert client.post("/api/v1/tokens/", {"expires_in": 60}, format="json").status_code == 201


def test_the_first_start_makes_an_admin_and_a_private_file(tmp_path, settings):
    settings.GPUSHARE_HOME = tmp_path
    key = ensure_admin()
    path = tmp_path / "admin-token"
    assert path.read_text().strip() == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_admin() == key
    assert tokens.find(key).user.is_superuser
    signed_in = APIClient().post("/api/v1/sign-in/", {"username": "admin", "password": key}, format="json")
    assert signed_in.status_code == 201


class Killed(Exception):
    """Here the web side was killed: what is committed by then stays."""


def _killed(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("step", [(Token, "delete"), (audit, "append")])
def test_a_token_has_ended_if_the_audit_says_so_and_only_then(ada, monkeypatch, step):
    token, key = tokens.make(ada)
    monkeypatch.setattr(*step, _killed)
    with pytest.raises(Killed):
        tokens.end(ada, token)
    assert get(f"Token {key}")[0] == 200
    assert not AuditEntry.objects.filter(action="token-ended").exists()


def test_there_is_no_token_or_link_that_the_audit_does_not_know(ada, monkeypatch):
    monkeypatch.setattr(audit, "append", _killed)
    with pytest.raises(Killed):
        tokens.make(ada)
    with pytest.raises(Killed):
        links.make(ada, loopback=True)
    assert not Token.objects.exists()
    assert not SignInLink.objects.exists()
