"""A student opens a link, chooses a password and has the allowance that came with it; an account ends on its day."""

from datetime import timedelta

import pytest
from django.core import mail
from django.test import Client
from django.utils import timezone

from tests.support.machine import GIB
from tests.support.people import make_user, signed_in
from web import audit
from web.models import AuditEntry, Membership
from web.people import allowances, memberships, tokens
from web.people.roles import Role

pytestmark = pytest.mark.django_db
PASSWORD = "a long enough password"


@pytest.fixture
def admin(db):
    return signed_in(make_user("boss", Role.ADMIN))


def invited(admin, **more) -> str:
    """The key of the link that the page shows."""
    form = {"do": "person", "sign_in": "invite", "username": "lea", "role": "user", **more}
    answer = admin.post("/people/", form)
    assert answer.status_code == 200, answer.content.decode()
    address, key = answer.context["made_up"]["link"].split("#")
    assert address == "http://testserver/join/"
    return key


def join(key, password=PASSWORD, again=None):
    browser = Client()
    return browser, browser.post("/join/", {"key": key, "password": password, "again": again or password})


def test_a_link_gives_a_password_and_what_came_with_it_once(admin):
    key = invited(admin, gpu_memory="4GiB", ends_at="2999-03-31")
    assert not Client().login(username="lea", password=PASSWORD)
    assert b"You are invited" in Client().get("/join/").content
    for refused in (join(key, "short"), join(key, again="another long password"), join("nothing")):
        assert refused[1].status_code in (400, 403)
    browser, answer = join(key)
    assert (answer.status_code, answer.headers["Location"]) == (302, "/")
    assert browser.get("/me/").status_code == 200
    lea = Membership.objects.get().user
    assert allowances.limits_of(lea).gpu_memory == 4 * GIB
    assert Membership.objects.get().ends_at.isoformat() == "2999-04-01T00:00:00+00:00"  # the day is theirs
    assert join(key)[1].status_code == 403
    assert Client().login(username="lea", password=PASSWORD)
    entries = [(entry.action, entry.actor) for entry in AuditEntry.objects.filter(action__contains="invit")]
    assert entries == [("person-invited", "boss"), ("invitation-used", "lea")]
    assert audit.verify()[1] == []


def test_it_expires_is_taken_back_and_made_anew(admin):
    key = invited(admin)
    Membership.objects.update(expires_at=timezone.now())
    assert join(key)[1].status_code == 403
    admin.post("/people/lea/", {"do": "invite"})
    page = admin.get("/people/lea/").content.decode()
    newer = page.split("/join/#")[1].split("<")[0].strip()
    assert "An invitation is open until" in page
    assert "invited, until" in admin.get("/people/").content.decode()
    admin.post("/people/lea/", {"do": "take-back"})
    assert "invited, until" not in admin.get("/people/").content.decode()
    assert join(newer)[1].status_code == 403


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"ends_at": "2001-01-01"}, "ends_at"),
        ({"ends_at": "soon"}, "ends_at"),
        ({"gpu_memory": "lots"}, "gpu_memory"),
        ({"username": "a b"}, "username"),
    ],
)
def test_what_makes_no_sense_makes_no_account(admin, more, field):
    form = {"do": "person", "sign_in": "invite", "username": "lea", "role": "user", **more}
    answer = admin.post("/people/", form)
    assert (answer.status_code, answer.context["problem"].field) == (400, field)
    assert not Membership.objects.exists()
    assert admin.get("/people/lea/").status_code == 404


def test_an_account_ends_on_its_day_and_its_owner_is_warned_before(admin, settings):
    settings.EMAIL_HOST = "mail.example"
    lea = make_user("lea", Role.USER, email="lea@lab.example")
    tokens.make(lea)
    browser = signed_in(lea)
    now = timezone.now()
    memberships.set_end(make_user("root", Role.ADMIN), lea, now + timedelta(days=30))
    memberships.look(now)
    assert (mail.outbox, b"Your account ends" in browser.get("/").content) == ([], False)
    for _ in range(2):  # shown once
        memberships.look(now + timedelta(days=17))
    assert [(letter.to, "ends on" in letter.body) for letter in mail.outbox] == [(["lea@lab.example"], True)]
    Membership.objects.update(ends_at=now + timedelta(days=3))
    assert b"Your account ends" in browser.get("/").content
    memberships.look(now + timedelta(days=4))
    lea.refresh_from_db()
    assert not lea.is_active
    assert browser.get("/").status_code == 302
    assert not lea.tokens.exists()


def test_the_last_admin_does_not_end(admin):
    boss = Membership.objects.create(user=make_user("only", Role.ADMIN), ends_at=timezone.now()).user
    type(boss).objects.exclude(pk=boss.pk).delete()
    memberships.look(timezone.now())
    boss.refresh_from_db()
    assert boss.is_active
