"""Receivers, rules, silences and notifications over REST: what is refused, what is answered, what is sent of nobody."""

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from tests.notifying.conftest import SECRET, turn
from tests.support.people import client_for, make_user
from web import audit
from web.models import AuditEntry, Delivery, Receiver, Rule
from web.people.roles import Role
from web.services import notifying

pytestmark = pytest.mark.django_db

HOOK = {"name": "lab", "kind": "webhook", "url": "https://hooks.lab/x", "secret": SECRET}
MAIL = {"name": "lab", "kind": "mail", "addresses": ["ops@lab.example"]}
BAD_RECEIVERS = [
    ({"url": "hooks.lab/x"}, "url"),
    ({"url": "ftp://hooks.lab/x"}, "url"),
    ({"url": "file:///etc/passwd"}, "url"),
    ({"url": "http://"}, "url"),
    ({"url": "http://hooks.lab:port/"}, "url"),
    ({"url": "http://hooks.lab/\r\nX-Evil: 1"}, "url"),
    ({"url": "http://ada:secret@hooks.lab/"}, "url"),
    ({"url": "http://hooks.lab/" + "x" * 500}, "url"),
    ({"url": ""}, "url"),
    ({"url": 5}, "url"),
    ({"secret": "short"}, "secret"),
    ({"secret": ""}, "secret"),
    ({"secret": None}, "secret"),
    ({"kind": "carrier-pigeon"}, "kind"),
    ({"name": ""}, "name"),
    ({"name": "two\nlines"}, "name"),
    ({"name": "x" * 64}, "name"),
    ({"addresses": ["ops@lab.example"]}, "addresses"),
    ({"enabled": "yes"}, "enabled"),
    ({"color": "red"}, "color"),
]
BAD_MAILS = [["nobody"], ["ops@lab.example\nBcc: all@lab.example"], [], [5], ["a@lab.example"] * 21, "ops@lab.example"]
BAD_RULES = [
    ({"receiver": "nobody"}, "receiver"),
    ({"minutes": -1}, "minutes"),
    ({"minutes": "5"}, "minutes"),
    ({"minutes": 1e300}, "minutes"),
    ({"repeat_minutes": 0}, "repeat_minutes"),
    ({"repeat_minutes": -5}, "repeat_minutes"),
    ({"kinds": ["weather"]}, "kinds"),
    ({"kinds": "waiting"}, "kinds"),
    ({"severity": "panic"}, "severity"),
    ({"resolved": 1}, "resolved"),
]
BAD_SILENCES = [
    ({"until": "2020-01-01T00:00:00Z"}, "until"),
    ({"until": "soon"}, "until"),
    ({"until": 7}, "until"),
    ({"kind": "weather"}, "kind"),
    ({"person": "x" * 200}, "person"),
    ({"note": "x" * 501}, "note"),
]


@pytest.fixture
def admin(db):
    return client_for(make_user("root", Role.ADMIN))


def refused(answer, field):
    assert answer.status_code == 400, answer.content
    error = answer.json()["error"]
    assert error["field"].split(".")[0] == field
    assert error["message"].endswith((".", "!"))


@pytest.mark.parametrize(("change", "field"), BAD_RECEIVERS)
def test_a_receiver_that_makes_no_sense_is_refused(admin, change, field):
    refused(admin.post("/api/v1/notifying/receivers/", HOOK | change), field)
    assert not Receiver.objects.exists()


@pytest.mark.parametrize("addresses", BAD_MAILS)
def test_what_is_no_list_of_mail_addresses_is_refused(admin, settings, addresses):
    settings.EMAIL_HOST = "mail.lab"
    refused(admin.post("/api/v1/notifying/receivers/", MAIL | {"addresses": addresses}), "addresses")


def test_mail_is_refused_where_no_mail_server_is_set(admin, settings):
    refused(admin.post("/api/v1/notifying/receivers/", MAIL), "kind")
    settings.EMAIL_HOST = "mail.lab"
    assert admin.post("/api/v1/notifying/receivers/", MAIL).status_code == 201


def test_a_secret_is_never_shown_again(admin):
    made = admin.post("/api/v1/notifying/receivers/", HOOK)
    assert (made.status_code, made.json()["secret_set"]) == (201, True)
    place = f"/api/v1/notifying/receivers/{made.json()['id']}/"
    assert admin.patch(place, {"secret": "another secret, as long"}).status_code == 200
    for answer in (made, admin.get(place), admin.get("/api/v1/notifying/receivers/"), admin.get("/api/v1/audit/")):
        assert answer.status_code in (200, 201)
        assert SECRET not in answer.content.decode()
        assert "another secret" not in answer.content.decode()


def test_a_change_is_judged_with_what_stays(admin):
    made = admin.post("/api/v1/notifying/receivers/", HOOK).json()
    place = f"/api/v1/notifying/receivers/{made['id']}/"
    refused(admin.patch(place, {"kind": "mail"}), "addresses")
    refused(admin.patch(place, {"url": ""}), "url")
    Receiver.objects.update(failures=3, retry_at=timezone.now() + timedelta(minutes=9))
    answer = admin.patch(place, {"url": "https://hooks.lab/y"})
    assert (answer.json()["url"], answer.json()["secret_set"]) == ("https://hooks.lab/y", True)
    assert Receiver.objects.get().retry_at is None


def test_a_name_is_taken_once(admin):
    assert admin.post("/api/v1/notifying/receivers/", HOOK).status_code == 201
    answer = admin.post("/api/v1/notifying/receivers/", HOOK)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "name_taken")


@pytest.mark.parametrize(("change", "field"), BAD_RULES)
def test_a_rule_that_makes_no_sense_is_refused(admin, receiver, change, field):
    refused(admin.post("/api/v1/notifying/rules/", {"receiver": "hook"} | change), field)
    assert Rule.objects.count() == 1


@pytest.mark.parametrize(("change", "field"), BAD_SILENCES)
def test_a_silence_that_makes_no_sense_is_refused(admin, change, field):
    refused(admin.post("/api/v1/notifying/silences/", {"until": "2999-01-01"} | change), field)


def test_every_change_is_audited(admin, receiver):
    rule = admin.post("/api/v1/notifying/rules/", {"receiver": "hook", "kinds": ["waiting"], "minutes": 5}).json()
    admin.patch(f"/api/v1/notifying/rules/{rule['id']}/", {"minutes": 6})
    admin.delete(f"/api/v1/notifying/rules/{rule['id']}/")
    silence = admin.post("/api/v1/notifying/silences/", {"until": "2999-01-01", "kind": "waiting"}).json()
    admin.delete(f"/api/v1/notifying/silences/{silence['id']}/")
    admin.delete(f"/api/v1/notifying/receivers/{receiver.pk}/")
    entries = AuditEntry.objects.filter(actor="root").exclude(action="token-made")
    its, silent = f"rule {rule['id']}", f"silence {silence['id']}"
    assert list(entries.values_list("action", "subject")) == [
        ("rule-added", its), ("rule-changed", its), ("rule-removed", its),
        ("silence-added", silent), ("silence-removed", silent), ("receiver-removed", "hook"),
    ]  # fmt: skip


def test_a_message_to_try_it_arrives_and_its_delivery_is_shown(admin, hook, receiver):
    answer = admin.post(f"/api/v1/notifying/receivers/{receiver.pk}/test/")
    assert answer.status_code == 202
    turn(timezone.now())
    assert hook.statuses == [("firing", "test")]
    (shown,) = admin.get("/api/v1/notifying/deliveries/?receiver=hook&open=false").json()["results"]
    assert (shown["id"], shown["outcome"], shown["tries"]) == (hook.heard[0].id, "sent", 1)


def test_what_went_wrong_is_shown_with_the_next_try(admin, hook, receiver, engine):
    hook.down()
    engine("Docker does not answer.")
    turn(timezone.now())
    (shown,) = admin.get("/api/v1/notifying/deliveries/?open=true").json()["results"]
    assert shown["error"].startswith("It could not be reached")
    assert (shown["message"], shown["kind"], shown["outcome"]) == ("Docker does not answer.", "engine_away", "")
    assert shown["tried_at"] < shown["due_at"]
    row = admin.get(f"/api/v1/notifying/receivers/{receiver.pk}/").json()
    assert (row["failures"], row["waiting"]) == (1, 1)
    assert row["retry_at"] is not None


def test_a_receiver_that_is_removed_takes_its_messages_with_it(admin, hook, receiver, engine):
    hook.down()
    engine("away")
    turn(timezone.now())
    assert admin.delete(f"/api/v1/notifying/receivers/{receiver.pk}/").status_code == 204
    assert not Delivery.objects.exists()


def test_what_a_person_wishes_is_kept_and_judged(client, ada, settings):
    place = "/api/v1/me/notifications/"
    usual = client.get(place).json()
    assert usual == {
        "mail": False, "browser": True, "happenings": ["goes_on", "ended", "killed", "gives_way", "planned", "card"],
        "goes_on_minutes": 5.0, "address": "", "can_mail": False,
    }  # fmt: skip
    refused(client.patch(place, {"mail": True}), "mail")
    settings.EMAIL_HOST = "mail.lab"
    refused(client.patch(place, {"mail": True}), "mail")
    ada.email = "ada@lab.example"
    ada.save()
    assert client.patch(place, {"mail": True, "happenings": ["ended"]}).json()["happenings"] == ["ended"]
    refused(client.patch(place, {"happenings": ["weather"]}), "happenings")
    refused(client.patch(place, {"goes_on_minutes": -1}), "goes_on_minutes")
    refused(client.patch(place, {"address": "x@y.example"}), "address")  # nobody has strangers written to
    assert client.get(place).json() == usual | {
        "mail": True, "happenings": ["ended"], "address": "ada@lab.example", "can_mail": True,
    }  # fmt: skip


@pytest.mark.parametrize("said", ["ended,weather", ["weather"], 5, {"ended": True}, "", [["ended"]]])
def test_a_launch_that_asks_to_be_notified_of_nonsense_is_refused(client, gpu, said):
    answer = client.post("/api/v1/containers/", {"image": "local", "notify": said})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "notify")


@pytest.mark.django_db(transaction=True)
def test_nothing_is_changed_that_the_log_does_not_tell(monkeypatch):
    """As where a process is killed, or the database goes away, between the two."""
    boss = make_user("boss", Role.ADMIN)
    there = notifying.add_receiver(boss, HOOK)

    def killed(*_: object, **__: object) -> None:
        raise OperationalError("the database is gone")

    monkeypatch.setattr(audit, "record", killed)
    for deed in (
        lambda: notifying.add_receiver(boss, {**HOOK, "name": "other"}),
        lambda: notifying.change_receiver(boss, there.pk, {"url": "https://evil.lab/x"}),
        lambda: notifying.test_receiver(boss, there.pk),
        lambda: notifying.remove(boss, Receiver, there.pk),
    ):
        with pytest.raises(OperationalError):
            deed()
    assert list(Receiver.objects.values_list("name", "url")) == [("lab", HOOK["url"])]
    assert not Delivery.objects.exists()
