"""Sign-in through an OpenID Connect provider: the whole code flow against one that speaks HTTP."""

import importlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import clear_url_caches

from appliance import directory, urls
from tests.support.people import make_user
from web.people.roles import Role, role_of

jwt = pytest.importorskip("jwt", reason="needs the extra 'signin'")
pytest.importorskip("mozilla_django_oidc", reason="needs the extra 'signin'")
oidc = importlib.import_module("web.people.directory.oidc")
pytestmark = [pytest.mark.production, pytest.mark.django_db]
SECRET = "a secret between the provider and us, long enough"


class Provider(ThreadingHTTPServer):
    """Answers for whoever `claims` says is sitting at the browser."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.claims: dict[str, Any] = {"sub": "1", "preferred_username": "grace", "email": "grace@lab"}
        self.token: dict[str, Any] = {"iss": self.url, "aud": "gpushare", "exp": time.time() + 60}
        self.nonce = ""


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        token = {**self.server.claims, "nonce": self.server.nonce, **self.server.token}
        self._say({"access_token": "a", "id_token": jwt.encode(token, SECRET, "HS256")})

    def do_GET(self) -> None:
        self._say(self.server.claims)

    def _say(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def provider(settings) -> Iterator[Provider]:
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever, args=(0.02,))
        thread.start()
        environment = {
            "GPUSHARE_OIDC_CLIENT_ID": "gpushare",
            "GPUSHARE_OIDC_CLIENT_SECRET": SECRET,
            "GPUSHARE_OIDC_ISSUER": provider.url,
            "GPUSHARE_OIDC_AUTHORIZE_URL": provider.url + "/authorize",
            "GPUSHARE_OIDC_TOKEN_URL": provider.url + "/token",
            "GPUSHARE_OIDC_USERINFO_URL": provider.url + "/userinfo",
            "GPUSHARE_OIDC_ALGORITHM": "HS256",
        }
        settings.OIDC = directory.oidc(environment)
        for name, value in settings.OIDC.items():
            setattr(settings, name, value)
        settings.GPUSHARE_GROUPS = {"gpu-operators": "operator"}
        settings.AUTHENTICATION_BACKENDS = [*settings.AUTHENTICATION_BACKENDS, "web.people.directory.oidc.Backend"]
        _reload_urls()
        yield provider
        provider.shutdown()
        thread.join()
    settings.OIDC = {}
    _reload_urls()


def _reload_urls() -> None:
    importlib.reload(urls)
    clear_url_caches()


def sign_in(provider: Provider) -> Client:
    browser = Client()
    there = urlsplit(browser.get("/oidc/authenticate/")["Location"])
    asked = parse_qs(there.query)
    assert asked["client_id"] == ["gpushare"]
    assert asked["code_challenge_method"] == ["S256"]
    provider.nonce = asked["nonce"][0]
    browser.get("/oidc/callback/", {"code": "c", "state": asked["state"][0]})
    return browser


def user_of(browser: Client) -> User | None:
    return User.objects.filter(pk=browser.session.get("_auth_user_id")).first()


def test_somebody_signs_in_and_has_the_role_that_the_provider_tells(provider):
    provider.claims["groups"] = ["gpu-operators", "admin"]
    grace = user_of(sign_in(provider))
    assert grace is not None
    assert (grace.username, grace.email, role_of(grace)) == ("grace", "grace@lab", Role.OPERATOR)
    provider.claims["groups"] = []
    assert role_of(user_of(sign_in(provider))) is Role.USER


def test_the_api_takes_the_session(provider):
    assert sign_in(provider).get("/api/v1/me/").json()["username"] == "grace"


@pytest.mark.parametrize(
    "wrong",
    [{"aud": "somebody else"}, {"iss": "https://evil"}, {"exp": 1}, {"nonce": "another"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_token_that_is_not_for_us_lets_nobody_in(provider, wrong):
    provider.token |= wrong
    assert user_of(sign_in(provider)) is None
    assert not User.objects.exists()


def test_the_provider_cannot_take_over_an_account_of_ours(provider):
    make_user("admin", Role.ADMIN, password="ours")
    provider.claims["preferred_username"] = "Admin"
    assert user_of(sign_in(provider)) is None


@pytest.mark.parametrize("name", ["admın", "ADMİN", "аdmin", "ɑdmin"])
def test_the_provider_makes_nobody_who_can_be_taken_for_another(provider, name):
    make_user("admin", Role.ADMIN)  # who has no password here
    provider.claims["preferred_username"] = name
    assert user_of(sign_in(provider)) is None
    assert User.objects.count() == 1


def test_another_case_is_the_same_account(provider):
    make_user("éva")
    User.objects.update(password="!")
    provider.claims["preferred_username"] = "ÉVA"
    user = user_of(sign_in(provider))
    assert user is not None
    assert user.username == "éva"
    assert User.objects.count() == 1


def test_claims_without_a_name_let_nobody_in(provider):
    del provider.claims["preferred_username"]
    assert user_of(sign_in(provider)) is None


@pytest.mark.parametrize("name", ["../root", "gr\0ace", "ｇｒａｃｅ", "g" * 151, ""])
def test_a_name_that_no_account_can_have_lets_nobody_in(provider, name):
    assert user_of(sign_in(provider)) is not None
    provider.claims["preferred_username"] = name
    assert user_of(sign_in(provider)) is None
    assert [user.username for user in User.objects.all()] == ["grace"]


def test_somebody_who_is_switched_off_here_neither_stays_nor_comes_back(provider):
    browser = sign_in(provider)
    assert browser.get("/").status_code == 200
    User.objects.update(is_active=False)
    assert browser.get("/").status_code == 302
    assert user_of(sign_in(provider)) is None


def test_who_only_begins_is_counted_as_who_tries_to_sign_in(provider, settings):
    """Each beginning is a session that the database keeps."""
    settings.GPUSHARE_BUDGETS = replace(settings.GPUSHARE_BUDGETS, sign_ins_a_minute=2)
    answers = [Client().get("/oidc/authenticate/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [302, 302, 429]
    assert Session.objects.count() == 2


def test_who_never_comes_back_leaves_no_session_for_two_weeks(provider):
    browser = Client()
    browser.get("/oidc/authenticate/")
    assert browser.session.get_expiry_age() == 600
    browser = sign_in(provider)
    assert user_of(browser) is not None
    assert browser.session.get_expiry_age() == settings.SESSION_COOKIE_AGE
    browser.get("/oidc/authenticate/")  # once more, signed in
    assert browser.session.get_expiry_age() == settings.SESSION_COOKIE_AGE


def test_the_login_page_offers_it(provider):
    assert "/oidc/authenticate/" in Client().get("/login/").content.decode()


@pytest.mark.parametrize("theirs", ["grace", "Grace"])
@pytest.mark.parametrize("password", [None, "ours"])
def test_an_account_that_is_made_during_a_first_sign_in_is_the_only_one(provider, monkeypatch, theirs, password):
    """By another first sign-in of the same person, or by an admin, after the search for the account found none."""
    search = oidc.Backend.filter_users_by_claims

    def then_make(backend, claims):
        found = search(backend, claims)
        assert not found  # this evaluates the query
        make_user("grace", password=password or "x")
        if password is None:
            User.objects.update(password="!")
        return found

    monkeypatch.setattr(oidc.Backend, "filter_users_by_claims", then_make)
    provider.claims["preferred_username"] = theirs
    user = user_of(sign_in(provider))
    assert User.objects.count() == 1
    assert (user and user.username) == (None if password else "grace")
