"""Whoever is signed in is led to what there is, and does not have to know addresses."""

import pytest
from django.test import Client

from tests.support.machine import make_container
from tests.support.people import make_user, signed_in
from web.people.roles import Role

pytestmark = pytest.mark.django_db


def page_for(role: Role, path: str) -> str:
    return signed_in(make_user("ada", role)).get(path).content.decode()


@pytest.mark.parametrize(("role", "led"), [(Role.ADMIN, True), (Role.OPERATOR, False), (Role.USER, False)])
def test_an_admin_is_led_to_where_people_are_managed_and_nobody_else_is(role, led):
    assert ('href="/people/"' in page_for(role, "/")) == led


def test_from_there_an_admin_is_led_to_the_admin_site():
    assert 'href="/admin/"' in page_for(Role.ADMIN, "/people/")


def test_the_launch_form_leads_to_all_of_rest(gpu):
    assert 'href="/api/v1/docs/"' in page_for(Role.USER, "/launch/")


def test_launches_to_start_from_are_distinguished_by_their_names(gpu):
    """The demo's four have commands that are alike for the first forty letters."""
    owner = make_user("ada")
    for name in ("demo-a", "demo-b"):
        make_container(owner, name, gpu, command=["/opt/gpushare/.build/workload", "--check", "16MiB", "--name", name])
    offered = signed_in(owner).get("/launch/").content.decode()
    assert ">demo-a: " in offered
    assert ">demo-b: " in offered


def test_who_signs_in_for_the_first_time_is_led_to_the_token_until_somebody_else_is_there():
    def led() -> bool:
        return "admin-token" in Client().get("/login/").content.decode()

    assert not led()
    make_user("admin", Role.ADMIN)
    assert led()
    make_user("ada")
    assert not led()
