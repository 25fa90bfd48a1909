"""Last month's report by mail: once, to who wants it, and again after a server that was away."""

from datetime import UTC, datetime

import pytest
from django.core import mail

from tests.support.events import EventKind, append
from tests.support.machine import GIB, make_container, make_gpu, make_node
from tests.support.people import make_user, signed_in
from web.models import Container, Receiver
from web.notifying import monthly
from web.people.roles import Role

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 1, 0, 5, tzinfo=UTC)


@pytest.fixture
def used():
    begun, over = datetime(2026, 10, 3, 8, tzinfo=UTC), datetime(2026, 10, 3, 12, tzinfo=UTC)
    made = make_container(make_user("ada"), "a", make_gpu(make_node()), finished_at=over, exit_code=0)
    Container.objects.update(created_at=begun)
    append(made, begun, EventKind.ACCEPTED, made.claims.get().gpu, used_after=2 * GIB)


def test_it_is_sent_once_to_who_wants_it(used, settings, monkeypatch):
    settings.EMAIL_HOST = "mail.example"
    Receiver.objects.create(name="prof", kind="mail", addresses=["prof@lab.example"], monthly=True)
    Receiver.objects.create(name="ops", kind="mail", addresses=["ops@lab.example"])
    with monkeypatch.context() as broken:
        broken.setattr("django.core.mail.EmailMessage.send", lambda *_: (_ for _ in ()).throw(OSError("away")))
        monthly.look(NOW)
    assert Receiver.objects.get(name="prof").reported == ""
    for _ in range(2):
        monthly.look(NOW)
    (letter,) = mail.outbox
    assert (letter.to, letter.subject) == (["prof@lab.example"], "gpushare: GPU use in October 2026")
    assert "ada                                       8.0  100 %" in letter.body
    name, text, kind = letter.attachments[0]
    assert (name, kind) == ("gpushare-user-2026-10.csv", "text/csv")
    assert text.startswith("user,containers,vram_gib_hours")
    monthly.look(NOW.replace(month=12))
    assert len(mail.outbox) == 2


def test_it_is_chosen_on_the_page_and_for_mail_only(db, settings):
    settings.EMAIL_HOST = "mail.example"
    browser = signed_in(make_user("boss", Role.ADMIN))
    form = {"name": "prof", "kind": "mail", "addresses": "prof@lab.example", "monthly": "on", "enabled": "on"}
    answer = browser.post("/notifications/receivers/", form)
    assert answer.status_code == 204, answer.content.decode()
    assert Receiver.objects.get().monthly
    hook = {"name": "hook", "kind": "webhook", "url": "https://hook.example/", "secret": "s" * 20, "monthly": "on"}
    assert "by mail only" in browser.post("/notifications/receivers/", hook).content.decode()
