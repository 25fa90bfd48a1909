"""Reservations: what fits, who may make them, whose they are, and the calendar that one subscribes to."""

import re
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connections
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core import reserved
from scheduler.core.state import Gpu as CoreGpu
from scheduler.core.state import Reserve, State
from tests.support.machine import GIB, make_container, make_gpu, make_node
from tests.support.people import client_for, make_user, signed_in
from web.errors import Problem
from web.models import AllocationEvent, Allowance, AuditEntry, Container, Gpu, Reservation, ReservedGpu
from web.models.series import spans
from web.people.roles import Role
from web.services import attention
from web.services.booked import coming, reservations
from web.services.booked.capacity import Taken, together, worst
from web.spec.booked import ReservationSpec

DAY = timedelta(days=1)
NOON = datetime(2026, 10, 1, 12, tzinfo=UTC)


@pytest.fixture
def admin(db: None) -> User:
    return make_user("root", Role.ADMIN)


def body(after: timedelta = DAY, **fields: Any) -> dict[str, Any]:
    """An hour on one GPU, all of it, on the next half hour after so long."""
    at = timezone.now() + after
    at += timedelta(minutes=30 - at.minute % 30)
    return {"starts": f"{at:%Y-%m-%dT%H:%M}", "minutes": 60, **fields}


# ---- pure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts", "zone", "repeat", "begins"),
    [
        # The last Sunday of October: clocks go back; the local time stays.
        ("2026-10-23T10:00", "Europe/Berlin", "daily", ["23 08", "24 08", "25 09", "26 09"]),
        ("2026-10-18T10:00", "Europe/Berlin", "weekly", ["18 08", "25 09", "01 09", "08 09"]),
        # 02:30 comes twice, and the first counts; in March it does not come, and is an hour later.
        ("2026-10-24T02:30", "Europe/Berlin", "daily", ["24 00", "25 00", "26 01", "27 01"]),
        ("2026-03-28T02:30", "Europe/Berlin", "daily", ["28 01", "29 01", "30 00", "31 00"]),
        ("2026-10-24T02:30", "Asia/Kathmandu", "daily", ["23 20", "24 20", "25 20", "26 20"]),
    ],
)
def test_a_series_keeps_its_local_time_over_the_change_of_clocks(starts, zone, repeat, begins):
    found = spans(starts, zone, 90, repeat, 4)
    assert [f"{begin:%d %H}" for begin, _ in found] == begins
    assert {end - begin for begin, end in found} == {timedelta(minutes=90)}


def test_a_daily_one_of_whole_days_never_overlaps_itself_when_a_day_has_23_hours():
    found = spans("2026-03-27T08:00", "Europe/Berlin", 24 * 60, "daily", 4)
    assert [(end - begin).total_seconds() / 3600 for begin, end in found] == [24, 23, 24, 24]
    assert all(end <= begin for (_, end), (begin, _) in pairwise(found))


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.none() | st.frozensets(st.sampled_from("abc"))))


@given(ROWS)
def test_what_is_taken_is_reckoned_as_the_core_reckons_what_is_kept(rows):
    """One rule, in two places: the web side knows nothing of the scheduler's core."""
    taken = [Taken(NOON, NOON + DAY, size, "", people, owner) for owner, size, people in rows]
    held = [(each.owner, each.bytes) for each in taken if each.people is None]
    here = tuple(
        Reserve(f"{number:03}", "g", each.bytes, each.people, 0, 1, is_kept=True)
        for number, each in enumerate(taken)
        if each.people is not None
    )
    empty = State(gpus={"g": CoreGpu("g", 0)}, reserves=here)
    assert together(taken) == -reserved.free(empty, "g", promised=held)


TAKEN = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(1, 8)), max_size=12)


@given(TAKEN)
def test_at_no_moment_is_more_reserved_than_there_is(asked):
    """As they are made, one after the other: what does not fit at some moment of it is left out."""
    half, capacity, made = timedelta(minutes=30), 10, list[Taken]()
    for start, length, size in asked:
        each = Taken(NOON + start * half, NOON + (start + length) * half, size)
        if worst(made, each.begins, each.ends)[0] + size <= capacity:
            made.append(each)
    for moment in range(60):
        at = NOON + moment * half + timedelta(minutes=1)
        assert sum(each.bytes for each in made if each.begins <= at < each.ends) <= capacity


def test_what_fits_exactly_between_others_fits():
    hour = timedelta(hours=1)
    taken = [Taken(NOON - hour, NOON, 9, "ada"), Taken(NOON + hour, NOON + 2 * hour, 9, "bob")]
    assert worst(taken, NOON, NOON + hour) == (0, [])
    assert worst(taken, NOON, NOON + hour + timedelta(seconds=1))[0] == 9


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"starts": "2026-12-04T08:10"}, "starts"),
        ({"starts": "2026-12-04T08:00+01:00"}, "starts"),
        ({"starts": "2026-02-30T08:00"}, "starts"),
        ({"starts": "tomorrow"}, "starts"),
        ({"zone": "../../etc/passwd"}, "zone"),
        ({"zone": "Europe/Nowhere"}, "zone"),
        ({"minutes": 45}, "minutes"),
        ({"minutes": 0}, "minutes"),
        ({"minutes": 10**9}, "minutes"),
        ({"repeat": "secondly", "times": 2}, "repeat"),
        ({"rrule": "FREQ=SECONDLY"}, "rrule"),
        ({"repeat": "daily", "times": 201}, "times"),
        ({"repeat": "daily", "times": 1}, "times"),
        ({"times": 3}, "times"),
        ({"repeat": "daily", "times": 2, "minutes": 25 * 60}, "minutes"),
        ({"gpu_memory": 12}, "gpu_memory"),
        ({"gpus": []}, "gpus"),
        ({"note": "two\nlines"}, "note"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, field):
    with pytest.raises(Problem) as refused:
        ReservationSpec.parse({"starts": "2026-12-04T08:00", "minutes": 60, **fields})
    assert refused.value.field == field


# ---- made ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_person_reserves_and_another_sees_who_has_it(ada, client, gpu):
    made = client.post("/api/v1/reservations/", body(gpu_memory="3GiB", note="class"))
    assert made.status_code == 201, made.json()
    assert made.json()["user"] == "ada"
    assert [card["uuid"] for card in made.json()["gpus"]] == ["GPU-0"]
    other = client_for(make_user("bob"))
    refused = other.post("/api/v1/reservations/", body(gpu_memory="3GiB"))
    assert refused.status_code == 409
    message = refused.json()["error"]["message"]
    assert re.search(r"3 GiB of the 5 GiB of GPU 0 of host is taken by ada; this needs 3 GiB\.", message)
    assert other.post("/api/v1/reservations/", body(gpu_memory="2GiB")).status_code == 201
    assert other.post("/api/v1/reservations/", body(DAY + timedelta(hours=1), gpu_memory="5GiB")).status_code == 201
    assert len(client.get("/api/v1/reservations/").json()["results"]) == 3
    assert AuditEntry.objects.filter(action="reserve").count() == 3


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("how", "if_short", "status"),
    [
        ({"guaranteed": True}, "short", 409),
        ({"give_way": False}, "short", 409),
        ({"cannot_move": "It shares memory."}, "short", 409),
        ({"guaranteed": True}, "end", 201),
        ({"guaranteed": True, "ttl_seconds": 60}, "short", 201),
        ({}, "short", 201),
    ],
)
def test_who_cannot_be_moved_is_in_the_way_unless_it_ends_before(ada, client, gpu, how, if_short, status):
    make_container(make_user("bob"), "train", gpu, quota=2 * GIB, **how)
    answer = client.post("/api/v1/reservations/", body(gpu_memory="4GiB", if_short=if_short))
    assert answer.status_code == status
    if status == 409:
        assert "train of bob, which cannot be moved" in answer.json()["error"]["message"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("allowed", "asked", "said"),
    [
        ({}, {"after": 14 * DAY}, "14 days ahead"),
        ({"reserved_days": 30}, {"after": 14 * DAY}, ""),
        ({"reservations": 0}, {}, "may have 0 at once"),
        ({"reserved_gib_hours": 4.0}, {}, "This is 5.0 GiB·hours"),
        ({"reserved_gib_hours": 14.0}, {"repeat": "daily", "times": 3}, "This is 15.0 GiB·hours"),
        ({"gpus": ["GPU-1"]}, {}, "may not use GPU 0"),
    ],
)
def test_people_reserve_within_their_allowance_and_admins_without(admin, ada, client, gpu, allowed, asked, said):
    Allowance.objects.create(user=ada, **allowed)
    asked = body(**asked)
    answer = client.post("/api/v1/reservations/", asked)
    assert answer.status_code == (403 if said else 201)
    assert said in (answer.json()["error"]["message"] if said else "")
    if said:
        assert client_for(admin).post("/api/v1/reservations/", asked | {"user": "ada"}).status_code == 201


@pytest.mark.django_db
def test_one_in_the_past_or_for_others_or_on_a_card_that_is_gone_is_refused(ada, client, gpu):
    make_user("bob")
    Group.objects.create(name="vision")
    gone = make_gpu(gpu.node, 1, present=False)
    far = make_gpu(make_node(name="far"), 2)
    asked: list[tuple[dict[str, Any], int, str]] = [
        (body(-DAY), 400, "past"),
        (body(user="bob"), 403, "Only an admin"),
        (body(group="vision"), 400, "in no group"),
        (body(gpus=[gone.uuid]), 400, "not here"),
        (body(gpus=[gpu.uuid, far.uuid]), 400, "on one node"),
        (body(gpus=2), 409, "No node has 2 GPUs"),
        (body(gpu_memory="6GiB", gpus=["GPU-0"]), 409, "has 5 GiB"),
    ]
    for data, status, said in asked:
        answer = client.post("/api/v1/reservations/", data)
        assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), answer.json()
    assert client_for(make_user("eve", Role.VIEWER)).post("/api/v1/reservations/", body()).status_code == 403
    assert not Reservation.objects.exists()


@pytest.mark.django_db
def test_it_is_of_those_with_a_right_now_and_ends_for_who_may_end_it(admin, ada, client, gpu):
    vision = Group.objects.create(name="vision")
    ada.groups.add(vision)
    bob = make_user("bob")
    of_group = client.post("/api/v1/reservations/", body(gpu_memory="1GiB", group="vision")).json()["id"]
    own = client.post("/api/v1/reservations/", body(gpu_memory="1GiB")).json()["id"]
    now, later = timezone.now(), timezone.now() + 3 * DAY

    def rights() -> dict[int, list[str]]:
        rows = reservations.due([gpu.pk], now, later, {})
        return {int(re.findall(r"\d+", each.id)[0]): sorted(each.people) for each in rows}

    assert rights() == {of_group: ["ada"], own: ["ada"]}
    bob.groups.add(vision)
    User.objects.filter(pk=ada.pk).update(is_active=False)  # switched off meanwhile
    assert rights() == {of_group: ["bob"]}
    User.objects.filter(pk=ada.pk).update(is_active=True)
    assert client_for(bob).delete(f"/api/v1/reservations/{own}/").status_code == 403
    assert client.delete(f"/api/v1/reservations/{own}/").status_code == 204
    assert client_for(admin).delete(f"/api/v1/reservations/{of_group}/").status_code == 204
    assert client.delete(f"/api/v1/reservations/{own}/").status_code == 404
    assert rights() == {}
    entries = AuditEntry.objects.filter(action__startswith="reserv").values_list("action", "subject")
    made, over = {("reserve", f"reservation {each}") for each in (own, of_group)}, "reservation-ended"
    assert set(entries) == made | {(over, f"reservation {each}") for each in (own, of_group)}


@pytest.mark.django_db
def test_one_that_has_begun_can_be_ended_and_its_memory_reserved_by_others(ada, client, gpu):
    now = timezone.now()
    made = Reservation.objects.create(user=ada, starts=f"{now - DAY:%Y-%m-%dT%H:00}", zone="UTC", minutes=3 * 1440,
                                      made_by="ada", over_at=now + 2 * DAY)  # fmt: skip
    made.cards.create(gpu=gpu)
    other = client_for(make_user("bob"))
    assert other.post("/api/v1/reservations/", body()).status_code == 409
    assert client.delete(f"/api/v1/reservations/{made.pk}/").status_code == 204
    assert other.post("/api/v1/reservations/", body()).status_code == 201


@pytest.mark.django_db
def test_what_people_hold_within_their_own_reservation_is_not_counted_twice(ada, client, gpu):
    make_container(ada, "train", gpu, quota=2 * GIB, guaranteed=True)
    assert client.post("/api/v1/reservations/", body(gpu_memory="3GiB")).status_code == 201
    other = client_for(make_user("bob"))
    assert other.post("/api/v1/reservations/", body(gpu_memory="3GiB")).status_code == 409
    assert other.post("/api/v1/reservations/", body(gpu_memory="2GiB")).status_code == 201


@pytest.mark.django_db
def test_the_time_of_a_person_whose_account_is_off_is_not_promised_to_others(admin, ada, client, gpu):
    made = client.post("/api/v1/reservations/", body(gpu_memory="3GiB")).json()["id"]
    other, now = client_for(make_user("bob")), timezone.now()
    User.objects.filter(pk=ada.pk).update(is_active=False)
    assert reservations.due([gpu.pk], now, now + 3 * DAY, {}) == []  # kept for nobody
    large = make_container(make_user("eve"), "large", gpu, quota=5 * GIB)
    assert coming.said_to(large) == ""
    assert other.post("/api/v1/reservations/", body(gpu_memory="3GiB")).status_code == 409  # ada may be back
    assert client_for(admin).delete(f"/api/v1/reservations/{made}/").status_code == 204
    assert other.post("/api/v1/reservations/", body(gpu_memory="3GiB")).status_code == 201


@pytest.mark.django_db(transaction=True)
def test_of_two_that_ask_at_once_for_the_same_memory_one_has_it(ada, gpu):
    bob, outcomes = make_user("bob"), list[str]()

    def ask(user: User) -> None:
        try:
            reservations.reserve(user, body(gpu_memory="3GiB"))
            outcomes.append("made")
        except Problem as problem:
            outcomes.append(problem.code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask, args=[user]) for user in (ada, bob)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", "reserved"]


# ---- shown --------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_calendar_that_one_subscribes_to_opens_by_its_key_alone(ada, client, gpu):
    client.post("/api/v1/reservations/", body(repeat="weekly", times=2, note="class; room 1, \\ " + "ä" * 60))
    client_for(make_user("bob")).post("/api/v1/reservations/", body(3 * DAY))
    url = client.post("/api/v1/me/calendar/").json()["url"]
    answer = Client().get(url)
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/calendar; charset=utf-8")
    lines = answer.content.decode().split("\r\n")
    assert max(len(line.encode()) for line in lines) <= 75
    whole = answer.content.decode().replace("\r\n ", "")
    assert whole.count("BEGIN:VEVENT") == 2
    assert "SUMMARY:all memory reserved for ada" in whole
    assert "DESCRIPTION:class\\; room 1\\, \\\\ ä" in whole
    assert Client().get("/calendar/").status_code == 302
    key = url.rpartition("/")[2].removesuffix(".ics")
    for header in (f"Token {key}", f"Bearer {key}"):
        assert Client().get("/api/v1/me/", headers={"Authorization": header}).status_code == 401
    assert client.post("/api/v1/me/calendar/").json()["url"] != url
    assert Client().get(url).status_code == 404


@pytest.mark.django_db
def test_the_page_shows_and_does_the_same_without_a_pointer(ada, gpu: Gpu):
    browser = signed_in(ada)
    asked = body(gpu_memory="2GiB")
    form = {"do": "reserve", "starts": asked["starts"], "hours": "1.5", "gpu_memory": "2GiB", "repeat": "weekly",
            "times": "2", "zone": "Europe/Berlin", "if_short": "short", "note": "class", "gpus": "GPU-0"}  # fmt: skip
    refused = browser.post("/calendar/", form | {"hours": "1.3"})
    assert (refused.status_code, "a multiple of 30 minutes" in refused.content.decode()) == (400, True)
    assert browser.post("/calendar/", form).status_code == 302
    page = browser.get("/calendar/?zone=Europe/Berlin").content.decode()
    assert "ada, 2 GiB" in page  # in the bars
    assert f'aria-label="Cancel reservation {Reservation.objects.get().pk} for ada"' in page
    assert "weekly at" in page
    for odd in ("?zone=../x", "?from=9999-99-99", "?from=0001-01-01", "?zone=%00"):
        assert browser.get(f"/calendar/{odd}").status_code in (200, 400), odd
    assert browser.post("/calendar/", {"do": "end", "id": Reservation.objects.get().pk}).status_code == 302
    assert not Reservation.objects.open(timezone.now()).exists()
    assert ".ics" in browser.post("/calendar/", {"do": "subscribe"}).content.decode()
    assert Container.objects.count() == 0


@pytest.mark.django_db
def test_whoever_holds_what_is_reserved_is_notified_unless_there_is_room_for_both(ada, client, gpu):
    bob = make_user("bob")
    client.post("/api/v1/reservations/", body(2 * DAY, gpu_memory="3GiB"))
    small = make_container(bob, "small", gpu, quota=GIB)
    own = make_container(ada, "own", gpu, quota=4 * GIB)
    assert coming.said_to(small) == coming.said_to(own) == ""
    short = make_container(bob, "short", gpu, quota=2 * GIB, ttl_seconds=60)
    large = make_container(bob, "large", gpu, quota=2 * GIB)
    assert coming.said_to(short) == ""
    assert "3 GiB of GPU 0 of host is reserved for ada" in coming.said_to(large)
    begins = Reservation.objects.get().spans[0][0]
    for before in (2 * DAY, DAY, DAY / 2, timedelta(minutes=30)):
        coming.tell(begins - before)
    details = AllocationEvent.objects.filter(kind="notified", container=large).values_list("detail", flat=True)
    assert [detail.partition("3 GiB")[0] for detail in details] == ["", "In a day: ", "In an hour: "]
    assert not AllocationEvent.objects.filter(container__in=[own, short]).exists()


@pytest.mark.django_db
def test_what_lacks_or_is_on_a_card_that_is_gone_needs_attention(ada, client, gpu):
    client.post("/api/v1/reservations/", body(gpu_memory="3GiB"))
    assert attention.items() == []
    ReservedGpu.objects.update(short=GIB)
    (item,) = attention.items()
    assert (item.kind, item.person) == ("reserved_short", "ada")
    assert item.message.startswith("1 GiB of what is reserved on GPU 0 of host for ada from ")
    Gpu.objects.update(present=False)
    assert [each.message.partition(",")[0] for each in attention.items()] == ["GPU 0 of host is gone"]
