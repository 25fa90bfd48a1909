"""Links that sign in: once, in time, on this host, and no trace of the key."""

import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.utils import timezone

from tests.support.people import make_user
from web.models import AuditEntry, SignInLink
from web.people import links
from web.people.roles import Role

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin() -> User:
    return make_user("admin", Role.ADMIN)


def enter(key: str, address: str = "127.0.0.1") -> tuple[int, Client]:
    browser = Client(REMOTE_ADDR=address)
    return browser.post("/enter/", {"key": key}).status_code, browser


def signed_in(browser: Client) -> bool:
    return browser.get("/").status_code == 200


def test_it_signs_in_once_and_leads_to_the_overview(admin: User) -> None:
    key = links.make(admin, loopback=True)
    status, browser = enter(key)
    assert (status, signed_in(browser)) == (302, True)
    status, browser = enter(key)
    assert (status, signed_in(browser)) == (403, False)
    entries = list(AuditEntry.objects.order_by("id").values_list("action", "actor", "address"))
    assert entries == [
        ("sign-in-link-made", "admin", ""),
        ("sign-in-link-used", "admin", "127.0.0.1"),
        ("sign-in", "admin", "127.0.0.1"),
        ("sign-in-failed", "", "127.0.0.1"),
    ]


def test_looking_at_the_page_does_not_use_it_up_and_it_is_kept_nowhere(admin: User) -> None:
    key = links.make(admin, loopback=True)
    page = Client().get("/enter/")
    assert page.status_code == 200
    assert "no-store" in page["Cache-Control"]
    assert page["Referrer-Policy"] == "same-origin"
    assert enter(key)[0] == 302


def test_the_key_is_in_no_record_no_row_and_no_log(admin: User, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    key = links.make(admin, loopback=True)
    assert key not in str(SignInLink.objects.values())
    for _ in range(2):
        assert key not in Client().post("/enter/", {"key": key}).content.decode()
    assert key not in str(list(AuditEntry.objects.values_list("detail", "subject")))
    assert key not in caplog.text


@pytest.mark.parametrize("key", ["", "x", "x" * 30_000, "gps_nothing"])
def test_what_is_no_key_is_refused_in_a_sentence(admin: User, key: str) -> None:
    links.make(admin, loopback=True)
    answer = Client().post("/enter/", {"key": key})
    assert answer.status_code == 403
    assert "This link is no longer valid" in answer.content.decode()
    assert SignInLink.objects.count() == 1


def test_after_its_minutes_it_is_worth_nothing_and_is_taken_away(admin: User) -> None:
    key = links.make(admin, loopback=True)
    SignInLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert enter(key)[0] == 403
    links.make(admin, loopback=True)
    assert SignInLink.objects.count() == 1


def test_from_another_host_it_is_refused_and_stays_good_here(admin: User) -> None:
    key = links.make(admin, loopback=True)
    status, browser = enter(key, "192.0.2.7")
    assert (status, signed_in(browser)) == (403, False)
    assert enter(key, "::1")[0] == 302
    assert enter(links.make(admin, loopback=False), "192.0.2.7")[0] == 302


def test_of_an_account_that_was_switched_off_it_is_worth_nothing(admin: User) -> None:
    key = links.make(admin, loopback=True)
    User.objects.update(is_active=False)
    assert enter(key)[0] == 403


def test_another_sites_form_cannot_use_it(admin: User) -> None:
    key = links.make(admin, loopback=True)
    assert Client(enforce_csrf_checks=True).post("/enter/", {"key": key}).status_code == 403
    assert SignInLink.objects.count() == 1


def test_in_the_address_it_is_not_looked_at(admin: User) -> None:
    key = links.make(admin, loopback=True)
    browser = Client()
    assert browser.get(f"/enter/?key={key}").status_code == 200
    assert not signed_in(browser)
    assert browser.post(f"/enter/?key={key}").status_code == 403


@pytest.mark.django_db(transaction=True)
def test_of_many_who_use_it_at_once_one_is_signed_in(admin: User) -> None:
    key = links.make(admin, loopback=True)
    together = threading.Barrier(8)
    results: list[int] = []

    def use() -> None:
        browser = Client()
        together.wait(60)
        results.append(browser.post("/enter/", {"key": key}).status_code)
        connections.close_all()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [302] + [403] * 7
    assert AuditEntry.objects.filter(action="sign-in").count() == 1
