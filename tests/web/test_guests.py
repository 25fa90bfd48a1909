"""Sharing an application with named people."""

from typing import Any

import pytest
from django.test import Client

from tests.support.machine import make_container
from tests.support.people import client_for, make_user, signed_in
from web.models import AuditEntry, Container
from web.people.roles import Role

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> Container:
    made = make_container(make_user("owner"), "lab")
    Container.objects.filter(pk=made.pk).update(app="8888/lab")
    made.refresh_from_db()
    return made


def put(lab: Container, *names: Any, who: Any = None) -> Any:
    return client_for(who or lab.owner).put(f"/api/v1/containers/{lab.pk}/guests/", {"guests": list(names)})


def test_the_list_is_as_it_was_given_and_each_change_is_audited(lab):
    for name in ("bob", "eve"):
        make_user(name, Role.VIEWER)
    for names in (["bob", "eve"], ["eve", "bob"], ["bob"], []):
        assert put(lab, *names).json() == {"guests": sorted(names)}
    details = [each.detail for each in AuditEntry.objects.filter(action="app-shared").order_by("pk")]
    changes = [(each["added"], each["removed"]) for each in details]
    assert changes == [(["bob", "eve"], []), ([], ["eve"]), ([], ["bob"])]


@pytest.mark.parametrize(
    ("names", "code"),
    [(["nobody"], "unknown_user"), (["gone"], "unknown_user"), (["x"] * 65, "invalid"), ([1], "invalid"),
     (["a" * 151], "invalid"), ([""], "invalid")],
)  # fmt: skip
def test_what_makes_no_sense_changes_nothing(lab, names, code):
    make_user("gone", is_active=False)
    make_user("bob")
    put(lab, "bob")
    answer = put(lab, *names)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert lab.guests.count() == 1


def test_without_an_application_or_after_its_end_there_is_nothing_to_share(lab):
    make_user("bob")
    Container.objects.filter(pk=lab.pk).update(app="")
    assert put(lab, "bob").json()["error"]["code"] == "no_app"
    Container.objects.filter(pk=lab.pk).update(app="8888", finished_at=lab.created_at)
    assert put(lab, "bob").json()["error"]["code"] == "container_ended"


def test_a_guest_shares_it_with_nobody_and_steers_nothing(lab):
    bob = make_user("bob")
    put(lab, "bob")
    assert put(lab, "bob", "owner", who=bob).status_code == 403
    assert client_for(bob).post(f"/api/v1/containers/{lab.pk}/kill/", {}).status_code == 403


def browser(name: str) -> Client:
    return signed_in(Container.objects.get().owner._meta.model.objects.get(username=name))


def test_on_its_page_people_are_added_and_removed(lab):
    make_user("bob<i>")
    client = browser("owner")
    page = client.get(f"/containers/{lab.pk}/").content.decode()
    assert 'id="guests"' in page
    page = client.post(f"/containers/{lab.pk}/guests/", {"added": " bob<i> "}).content.decode()
    assert "bob&lt;i&gt;" in page
    assert lab.guests.count() == 1
    assert "no active account" in client.post(f"/containers/{lab.pk}/guests/", {"added": "x"}).content.decode()
    client.post(f"/containers/{lab.pk}/guests/", {"removed": "bob<i>"})
    assert not lab.guests.exists()


def test_open_stands_there_for_who_may_open_it(lab, settings):
    settings.GPUSHARE_APPS = "lab-apps.example"
    for name in ("bob", "eve"):
        make_user(name)
    put(lab, "bob")
    address = f"https://lab-{str(lab.pk)[:8]}-8888.lab-apps.example/lab"
    shown = {
        name: address in browser(name).get(f"/containers/{lab.pk}/").content.decode()
        for name in ("owner", "bob", "eve")
    }
    assert shown == {"owner": True, "bob": True, "eve": False}
    settings.GPUSHARE_APPS = ""
    assert "lab-apps" not in browser("owner").get(f"/containers/{lab.pk}/").content.decode()


@pytest.mark.parametrize(
    ("said", "allowed"),
    [("cross-site cors empty", False), ("same-site no-cors image", False), ("same-site navigate iframe", False),
     ("same-site navigate document", True), ("same-origin cors empty", True), ("none navigate document", True)],
)  # fmt: skip
def test_a_page_of_another_site_asks_for_nothing_with_somebody_s_session(lab, said, allowed):
    headers = dict(zip(("Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"), said.split(), strict=True))
    for path in (f"/containers/{lab.pk}/", "/api/v1/me/"):
        assert browser("owner").get(path, headers=headers).status_code == (200 if allowed else 403)
    assert Client().get("/login/", headers=headers).status_code == 200
