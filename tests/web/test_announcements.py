"""Notices for everybody, and windows of maintenance: who is notified when, and what begins by itself, once."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.utils import timezone

from tests.notifying.conftest import turn
from tests.support.machine import make_container, make_gpu, make_node
from tests.support.people import client_for, make_user, signed_in
from web.models import AllocationEvent, Announcement, AuditEntry, Command, Container, Delivery, Gpu, Node, Notice, Wish
from web.people.roles import Role
from web.services import attention
from web.services.booked import announcements, coming

pytestmark = pytest.mark.django_db
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
Then = Announcement.Then


@pytest.fixture
def admin(db: None) -> User:
    return make_user("root", Role.ADMIN)


def window(admin: User, *, after: timedelta = HOUR, **fields: Any) -> Announcement:
    """It lasts two hours."""
    begins = timezone.now() + after
    times = {"begins_at": begins.isoformat(), "ends_at": (begins + 2 * HOUR).isoformat()}
    return announcements.announce(admin, {"message": "New driver", **times, **fields})


def notices_of(container: Container) -> list[str]:
    return [event.detail for event in AllocationEvent.objects.filter(container=container, kind="notified")]


def test_a_notice_is_on_each_page_in_attention_and_sent_to_each_person_once(admin, ada, gpu, settings):
    settings.EMAIL_HOST = "mail.example"
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    User.objects.filter(pk=ada.pk).update(email="ada@lab.example")
    Wish.objects.create(user=ada, mail=True, browser=False)
    gone = make_user("gone", is_active=False)
    announcements.announce(admin, {"message": "Quiet week", "node": "host"})
    browser = signed_in(ada)
    for page in ("/", "/queue/", "/calendar/"):
        assert "node host: Quiet week" in browser.get(page).content.decode(), page
    assert [item.message for item in attention.items()] == ["node host: Quiet week"]
    for minute in range(3):
        turn(timezone.now() + timedelta(minutes=minute))
    assert {notice.user for notice in Notice.objects.all()} == {admin, ada}
    assert gone not in {notice.user for notice in Notice.objects.all()}
    assert Delivery.objects.get().outcome == "sent"
    assert ["node host: Quiet week" in each.body for each in mail.outbox] == [True]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"begins_at": "2020-01-01T08:00Z", "ends_at": "2999-01-01"}, "begins_at"),
        ({"begins_at": "2999-01-01"}, "ends_at"),
        ({"begins_at": "2999-01-02", "ends_at": "2999-01-01"}, "ends_at"),
        ({"ends_at": "2020-01-01"}, "ends_at"),
        ({"then": "end"}, "then"),
        ({"gpu": "GPU-9"}, "gpu"),
        ({"gpu": "GPU-0", "node": "host"}, "gpu"),
        ({"message": "two\nlines"}, "message"),
        ({"every": "second"}, "every"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_announced(admin, gpu, asked, field):
    answer = client_for(admin).post("/api/v1/announcements/", {"message": "x", **asked})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert not Announcement.objects.exists()


def test_whoever_launches_what_may_run_into_a_window_is_warned(admin, ada, client, gpu):
    window(admin, node="host", then="end")
    limits = {"endless": None, "long": 3 * 3600, "short": 600}
    made = {name: make_container(ada, name, gpu, ttl_seconds=ttl, node=gpu.node) for name, ttl in limits.items()}
    elsewhere = make_container(ada, "other", node=make_node(name="other"))
    said = {name: coming.said_to(each) for name, each in made.items()}
    assert "Maintenance of node host" in said["endless"] == said["long"]
    assert "It is then ended, with 60 s" in said["long"]
    assert said["short"] == coming.said_to(elsewhere) == ""


def test_owners_are_notified_at_the_launch_a_day_and_an_hour_before_once_each(admin, ada, gpu):
    begins = window(admin, after=3 * DAY, gpu="GPU-0").begins_at
    train = make_container(ada, "train", gpu, node=gpu.node)
    make_container(ada, "short", gpu, ttl_seconds=60, node=gpu.node)
    make_container(ada, "beside", make_gpu(gpu.node, 1), node=gpu.node)
    for before in (3 * DAY, 2 * DAY, DAY, 3 * HOUR, HOUR, HOUR / 2):
        for _ in range(2):
            turn(begins - before)
    leads = [detail.partition("Maintenance of GPU 0 of host")[0] for detail in notices_of(train)]
    assert leads == ["", "In a day: ", "In an hour: "]
    assert Notice.objects.filter(container=train).count() == 3
    assert AllocationEvent.objects.filter(kind="notified").count() == 3


@pytest.mark.parametrize(
    ("then", "kind", "arguments"),
    [(Then.STAY, None, None), (Then.MOVE, "pause", {"free_memory": True}), (Then.END, "kill", {"grace": 60.0})],
)
def test_a_window_begins_once_and_is_ended_by_a_person(admin, ada, gpu, then, kind, arguments):
    begins = window(admin, node="host", then=then).begins_at
    train = make_container(ada, "train", gpu, node=gpu.node)
    out = make_container(ada, "out", gpu, node=gpu.node, swapped_at=timezone.now())
    other = make_node(name="other")
    turn(begins - timedelta(seconds=1))
    assert not Node.objects.exclude(drained_at=None).exists()
    for moment in (begins, begins + HOUR, begins + 3 * HOUR):
        turn(moment)
    assert [node.name for node in Node.objects.exclude(drained_at=None)] == ["host"]
    assert other.drained_at is None
    found = [(each.container, each.kind, each.arguments, each.issued_by) for each in Command.objects.all()]
    concerned = [] if kind is None else [train] if then == Then.MOVE else [train, out]
    found.sort(key=lambda row: row[0].name, reverse=True)
    assert found == [(each, kind, arguments, admin) for each in concerned]


def test_a_window_of_a_gpu_takes_that_out_of_service_and_no_node(admin, ada, gpu):
    begins = window(admin, gpu=gpu.uuid, then="end").begins_at
    train = make_container(ada, "train", gpu, node=gpu.node)
    make_container(ada, "beside", make_gpu(gpu.node, 1), node=gpu.node)
    turn(begins)
    assert not Node.objects.exclude(drained_at=None).exists()
    drain, kill = Command.objects.order_by("number")
    said = Announcement.objects.get().said
    assert (drain.kind, drain.node, drain.arguments) == ("drain-gpu", gpu.node, {"gpu": gpu.uuid, "reason": said})
    assert (kill.kind, kill.container) == ("kill", train)
    entry = AuditEntry.objects.get(action="drain-gpu")
    assert (entry.actor, entry.subject) == ("root", gpu.uuid)


def test_two_that_look_begin_it_once_and_what_fails_half_way_is_as_if_it_had_not_begun(admin, ada, gpu, monkeypatch):
    made = window(admin, then="end")
    make_container(ada, "train", gpu, node=gpu.node)
    now = made.begins_at + HOUR
    with monkeypatch.context() as patch:
        patch.setattr(announcements.audit, "record", fails)  # killed over the last of it
        with pytest.raises(RuntimeError):
            announcements.begin_due(now)
    assert not Node.objects.exclude(drained_at=None).exists()
    assert Announcement.objects.get().begun_at is None
    due = [Announcement.objects.get()]  # both have read it before either has begun it
    monkeypatch.setattr(announcements.Announcement.objects, "current", lambda _: Due(due))
    for _ in range(2):
        announcements.begin_due(now)
    assert Command.objects.count() == 1


class Due(list[Announcement]):
    def filter(self, **_: Any) -> "Due":
        return self


def fails(*_: Any, **__: Any) -> None:
    raise RuntimeError


def test_one_that_is_withdrawn_or_was_missed_begins_nothing(admin, ada, gpu):
    withdrawn, missed = window(admin), window(admin)
    announcements.withdraw(admin, withdrawn.pk)
    turn(missed.ends_at + HOUR)
    assert not Node.objects.exclude(drained_at=None).exists()
    assert client_for(admin).delete(f"/api/v1/announcements/{withdrawn.pk}/").status_code == 404
    called = AuditEntry.objects.filter(action="announcement-withdrawn").values_list("subject", flat=True)
    assert list(called) == [f"announcement {withdrawn.pk}"]


def test_an_admin_announces_by_the_form_in_a_zone_of_their_own(admin, ada, gpu: Gpu):
    browser = signed_in(admin)
    form = {"do": "announce", "message": "New disk", "about": "gpu:GPU-0", "then": "stay",
            "begins_at": "2999-07-01T08:00", "ends_at": "2999-07-01T10:00", "zone": "Europe/Berlin"}  # fmt: skip
    refused = browser.post("/calendar/", form | {"zone": "../etc/passwd"})
    assert (refused.status_code, "There is no such time zone" in refused.content.decode()) == (400, True)
    assert browser.post("/calendar/", form).status_code == 302
    assert Announcement.objects.get().said == (
        "Maintenance of GPU 0 of host, 2999-07-01 06:00 to 2999-07-01 08:00 UTC: New disk"
    )
    assert browser.post("/calendar/", {"do": "withdraw", "id": Announcement.objects.get().pk}).status_code == 302
    assert not Announcement.objects.current(timezone.now()).exists()
    browser.force_login(ada)
    assert browser.post("/calendar/", form).status_code == 403
    assert "Announce</summary>" not in browser.get("/calendar/").content.decode()
