"""Wrong passwords slow down whoever sends them, on every way in; so does asking too often."""

import time
from datetime import timedelta

import pytest
from django.contrib.auth import authenticate
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from appliance.budgets import Budgets
from tests.support.people import client_for, make_user, signed_in
from web.people import signin
from web.people.roles import Role

pytestmark = pytest.mark.django_db
URL = "/api/v1/sign-in/"


@pytest.fixture(autouse=True)
def bob():
    return make_user("bob", password="right")


def attempt(password: str, username: str = "bob", address: str = "10.0.0.1") -> int:
    body = {"username": username, "password": password}
    return APIClient().post(URL, body, format="json", REMOTE_ADDR=address).status_code


def test_after_ten_failures_even_the_right_password_has_to_wait():
    assert [attempt("wrong") for _ in range(signin.FAILURES)] == [401] * signin.FAILURES
    assert attempt("right") == 429
    assert attempt("right", address="10.0.0.2") == 201  # others are not locked out by it


def test_another_address_of_the_same_ipv6_network_is_no_second_chance():
    """One customer has all 2**64 of them: with a new one for every ten guesses nobody ever had to wait."""
    wrong = [attempt("wrong", address=f"2001:db8:0:1::{number:x}") for number in range(signin.FAILURES)]
    assert wrong == [401] * signin.FAILURES
    assert attempt("right", address="2001:db8:0:1:ffff::1") == 429
    assert attempt("right", address="2001:db8:0:2::1") == 201


def test_whoever_has_to_wait_sees_for_how_long(monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    for _ in range(signin.FAILURES):
        attempt("wrong")
    now += 100.5
    answer = APIClient().post(URL, {"username": "bob", "password": "right"}, format="json", REMOTE_ADDR="10.0.0.1")
    assert (answer.status_code, answer["Retry-After"]) == (429, "200")
    assert answer.json()["error"]["message"] == "Too many failed attempts. Try again in 200 seconds."
    now += 200
    assert attempt("right") == 201


def test_a_success_starts_the_count_again():
    for _ in range(3):
        assert [attempt("wrong") for _ in range(signin.FAILURES - 1)] == [401] * (signin.FAILURES - 1)
        assert attempt("right") == 201


def test_a_list_of_names_from_one_address_is_slowed_down(monkeypatch):
    monkeypatch.setattr(signin, "FAILURES_OF_ADDRESS", 5)
    for index in range(5):
        assert attempt("wrong", username=f"guess{index}") == 401
    assert attempt("right") == 429


def test_it_holds_for_the_login_page_and_the_admin_site_too(bob):
    bob.is_staff = bob.is_superuser = True
    bob.save(update_fields=["is_staff", "is_superuser"])
    browser = Client(REMOTE_ADDR="10.0.0.1")
    for _ in range(signin.FAILURES):
        browser.post("/admin/login/", {"username": "bob", "password": "wrong"})
    browser.post("/admin/login/?next=/admin/", {"username": "bob", "password": "right"})
    assert "_auth_user_id" not in browser.session
    assert authenticate(None, username="bob", password="right") == bob  # no address, no failures from it


@pytest.mark.parametrize("page", ["/login/", "/admin/login/"])
def test_the_pages_say_as_rest_does_for_how_long_one_has_to_wait(monkeypatch, page):
    """They said that name and password did not fit together, and each try made the wait longer."""
    make_user("root", Role.ADMIN, password="right")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    for _ in range(signin.FAILURES):
        attempt("wrong", username="root")
    now += 100.5
    browser = Client(REMOTE_ADDR="10.0.0.1")
    text = browser.post(page, {"username": "root", "password": "right"}).content.decode()
    assert "Too many failed attempts. Try again in 200 seconds." in text
    now += 200
    browser.post(page, {"username": "root", "password": "right"})
    assert "_auth_user_id" in browser.session


def test_a_wrong_password_is_shown_on_the_page():
    text = Client().post("/login/", {"username": "bob", "password": "wrong"}).content.decode()
    assert "Wrong name or password. Both are case-sensitive." in text


@pytest.fixture
def within_a_second(monkeypatch):
    """However long a busy machine takes: no second ends in between."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


@pytest.mark.budget("requests_a_second")
def test_asking_too_often_is_429_and_says_when_to_come_back(bob, settings, within_a_second):
    settings.GPUSHARE_BUDGETS = Budgets(requests_a_second=3)
    client = client_for(bob)
    answers = [client.get("/api/v1/gpus/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].json()["error"]["code"] == "too_many_requests"
    assert answers[-1]["Retry-After"] == "1"
    assert client_for(make_user("eve")).get("/api/v1/gpus/").status_code == 200


def test_another_token_or_a_session_is_no_second_budget(bob, settings, within_a_second):
    settings.GPUSHARE_BUDGETS = Budgets(requests_a_second=2)
    browser = signed_in(bob)
    assert client_for(bob).get("/api/v1/gpus/").status_code == 200
    assert browser.get("/queue/").status_code == 200
    refused = browser.get("/queue/")
    assert (refused.status_code, refused["Retry-After"]) == (429, "1")
    assert "More than 2 requests a second" in refused.content.decode()
    assert client_for(bob).get("/api/v1/gpus/").status_code == 429


def test_sessions_that_are_over_are_forgotten(bob):
    browsers = [Client() for _ in range(3)]
    for browser in browsers:
        browser.force_login(bob)
    now = timezone.now()
    Session.objects.filter(pk=browsers[0].session.session_key).update(expire_date=now - timedelta(seconds=1))
    signin.forget_sessions(now)
    assert [browser.get("/").status_code for browser in browsers] == [302, 200, 200]
    assert Session.objects.count() == 2


@pytest.mark.parametrize("path", [URL, "/login/", "/admin/login/"])
@pytest.mark.budget("sign_ins_a_minute")
def test_signing_in_has_a_rate_of_its_own(settings, path):
    settings.GPUSHARE_BUDGETS = Budgets(sign_ins_a_minute=2)
    body = {"username": "bob", "password": "right"}
    answers = [APIClient().post(path, body, format="json") for _ in range(3)]
    assert [answer.status_code == 429 for answer in answers] == [False, False, True]
    assert answers[-1]["Retry-After"] == "60"


def test_a_made_up_address_does_not_help(settings):
    settings.GPUSHARE_BUDGETS = Budgets(sign_ins_a_minute=2)
    body = {"username": "bob", "password": "right"}
    answers = [APIClient().post(URL, body, format="json", headers={"X-Forwarded-For": f"10.0.0.{n}"}) for n in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 429]


@pytest.mark.parametrize("path", ["/containers/rows/", "/people/ada/", "/"])
def test_a_part_of_a_page_that_is_asked_for_after_the_session_has_ended_leads_to_the_sign_in(db, path):
    """Its redirect was followed unseen, and drew the sign-in page into the panel."""
    part = Client().get(path, headers={"HX-Request": "true"})
    assert (part.status_code, part.headers["HX-Refresh"], part.content) == (401, "true", b"")
    whole = Client().get(path)
    assert (whole.status_code, whole.headers["Location"]) == (302, f"/login/?next={path}")


def test_a_form_that_is_refused_for_its_token_names_the_one_cause(bob):
    strict = Client(enforce_csrf_checks=True)
    sent = {"username": "bob", "password": "x"}
    without = strict.post("/login/", sent)
    assert (without.status_code, "<h1>Cookies are needed</h1>" in without.content.decode()) == (403, True)
    strict.get("/login/")
    outdated = strict.post("/login/", sent | {"csrfmiddlewaretoken": "x" * 32})
    assert (outdated.status_code, "<h1>This page is out of date</h1>" in outdated.content.decode()) == (403, True)
