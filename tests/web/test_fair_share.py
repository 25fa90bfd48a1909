"""Shares, boosts and forgiven usage as admins give them; what is in force; and the figures of the fairness page."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from tests.support.machine import GIB, make_container, make_gpu, make_node
from tests.support.people import client_for, make_user, signed_in
from web import audit
from web.history import fairness
from web.models import AllocationEvent, AuditEntry, Claim, Container, PersonShares, Usage, UsageHour
from web.pages.people import limits
from web.people import shares
from web.people.roles import Role
from web.services import attention, issuing, steering

pytestmark = pytest.mark.django_db
PEOPLE, GROUPS = "/api/v1/people/", "/api/v1/groups/"


@pytest.fixture
def boss(ada):
    return client_for(make_user("boss", Role.ADMIN))


def group_of(name: str, *members, given: int | None = None) -> Group:
    group = Group.objects.create(name=name)
    group.user_set.add(*members)
    if given:
        group.fair = shares.GroupShares.objects.create(group=group, shares=given)
    return group


def in_force():
    return shares.current(timezone.now())


def later(**time: int) -> str:
    return (timezone.now() + timedelta(**time)).isoformat()


def test_nothing_is_to_be_configured(ada):
    group_of("vision", ada)
    assert in_force() == shares.Current()


def test_a_group_counts_once_it_has_shares_and_no_longer_without(boss, ada):
    group_of("vision", ada)
    assert boss.patch(f"{GROUPS}vision/shares/", {"shares": 2}, format="json").json() == {"shares": 2}
    assert (in_force().groups, in_force().group_of) == ({"vision": 2.0}, {"ada": "vision"})
    assert boss.patch(f"{GROUPS}vision/shares/", {"shares": None}, format="json").json() == {"shares": None}
    assert in_force() == shares.Current()
    assert [entry.detail["after"] for entry in AuditEntry.objects.filter(action="shares-changed").order_by("id")] == [
        {"shares": 2}, {"shares": None},
    ]  # fmt: skip


def test_of_two_groups_one_counts_the_chosen_or_the_first_and_a_deleted_one_does_not(boss, ada):
    group_of("audio", ada, given=1)
    vision = group_of("vision", ada, given=2)
    assert in_force().group_of == {"ada": "audio"}
    asked = boss.patch(f"{PEOPLE}ada/shares/", {"share_group": "vision"}, format="json")
    assert (asked.json()["share_group"], asked.json()["groups"]) == ("vision", ["audio", "vision"])
    assert in_force().group_of == {"ada": "vision"}
    vision.user_set.remove(ada)  # by a directory, say: what was chosen does not count any more
    assert in_force().group_of == {"ada": "audio"}
    vision.delete()
    assert in_force().group_of == {"ada": "audio"}


def test_a_boost_multiplies_until_its_end(boss, ada):
    asked = {"shares": 3, "boost": 2, "boost_until": later(hours=1)}
    assert boss.patch(f"{PEOPLE}ada/shares/", asked, format="json").status_code == 200
    assert in_force().people == {"ada": 6.0}
    assert shares.current(timezone.now() + timedelta(hours=2)).people == {"ada": 3.0}
    boss.patch(f"{PEOPLE}ada/shares/", {"boost": 1}, format="json")
    assert (in_force().people, PersonShares.objects.get().boost_until) == ({"ada": 3.0}, None)


def test_forgiving_counts_up_and_is_audited(boss, ada):
    assert boss.patch(f"{PEOPLE}ada/shares/", {"forgive": True}, format="json").json()["forgiven"] == 1
    assert in_force().forgiven == {"ada": 1}
    assert AuditEntry.objects.get(action="usage-forgiven").subject == "ada"


@pytest.mark.parametrize(
    ("path", "asked", "field", "says"),
    [
        ("people/ada", {"shares": 0}, "shares", "With 0, a person"),
        ("people/ada", {"shares": 1001}, "shares", "1 to 1000"),
        ("people/ada", {"boost": 2}, "boost_until", "A boost ends"),
        ("people/ada", {"boost": 2, "boost_until": "2020-01-01"}, "boost_until", "in the future"),
        ("people/ada", {"share_group": "vision"}, "share_group", "is in no group"),
        ("people/ada", {}, "", "Nothing to change"),
        ("groups/vision", {"shares": 0}, "shares", "null takes them away"),
        ("groups/vision", {}, "shares", "required"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(boss, ada, path, asked, field, says):
    group_of("vision", ada)
    answer = boss.patch(f"/api/v1/{path}/shares/", asked, format="json")
    error = answer.json()["error"]
    assert (answer.status_code, error.get("field", ""), says in error["message"]) == (400, field, True), error
    assert in_force() == shares.Current()


def test_only_admins_and_nobody_for_themselves_but_the_only_one(boss, ada, client):
    assert client.patch(f"{PEOPLE}ada/shares/", {"shares": 2}, format="json").status_code == 403
    own = f"{PEOPLE}boss/shares/"
    assert boss.patch(own, {"shares": 2}, format="json").status_code == 200  # there is no other admin
    make_user("other", Role.ADMIN)
    for asked in ({"shares": 3}, {"forgive": True}, {"boost": 2, "boost_until": later(days=1)}):
        assert boss.patch(own, asked, format="json").status_code == 403, asked
    assert boss.patch(own, {"shares": 1}, format="json").status_code == 200
    assert client_for(make_user("third", Role.ADMIN)).patch(own, {"shares": 9}, format="json").status_code == 200


def test_the_forms_of_a_person_and_a_group_do_the_same(boss, ada):
    group_of("vision", ada)
    browser = signed_in(make_user("chief", Role.ADMIN))
    assert browser.post("/groups/vision/", {"do": "shares", "shares": "4"}).status_code == 302
    form = {"do": "shares", "shares": "2", "boost": "3", "boost_until": later(days=1)[:16], "share_group": "vision"}
    assert browser.post("/people/ada/", form).status_code == 302
    assert (in_force().people, in_force().groups) == ({"ada": 6.0}, {"vision": 4.0})
    refused = browser.post("/people/ada/", form | {"shares": "0"})
    assert (refused.status_code, b"With 0, a person" in refused.content) == (400, True)
    assert browser.post("/people/ada/", {"do": "forgive"}).status_code == 302
    assert in_force().forgiven == {"ada": 1}
    browser.post("/groups/vision/", {"do": "shares", "shares": ""})
    assert in_force().groups == {}


def hour(now, card, person: str, had: float, due: float, ago: int) -> None:
    UsageHour.objects.create(gpu=card, person=person, hour=now.timestamp() // 3600 - ago, had=had, due=due)


@pytest.fixture
def week(ada, gpu):
    """ada held three quarters of what bob waited for, twice; bob waited for one and two minutes."""
    bob, now = make_user("bob"), timezone.now()
    for ago in (1, 30):
        hour(now, gpu, "ada", 30.0, 20.0, ago)
        hour(now, gpu, "bob", 10.0, 20.0, ago)
    make_container(ada, "training", gpu, started_at=now - timedelta(hours=2))
    Claim.objects.update(granted=30 * GIB)
    made = make_container(bob, "notebook", gpu, started_at=now - timedelta(hours=1))
    for minute, waited in ((50, 60), (40, 120)):
        at = now - timedelta(minutes=minute)
        for kind, when, seconds in (("suspended", at - timedelta(seconds=waited), 0), ("resumed", at, waited)):
            event = AllocationEvent(at=when, kind=kind, container=made, gpu=gpu, bytes=GIB, waited=seconds)
            audit.append([event])
    Usage.objects.create(gpu=gpu, person="ada", at=now, ratio=1.5, share=20 * GIB)
    return bob


def test_the_figures_say_who_had_what_and_why_somebody_is_above(week, ada):
    group_of("vision", ada, week, given=2)
    now = timezone.now()
    people = {each.name: each for each in fairness.people(now - timedelta(days=7), now)}
    one, two = people["ada"], people["bob"]
    assert (one.had, one.due, one.ratio, one.standing, one.group) == (60.0, 40.0, 1.5, 1.5, "vision")
    assert one.why == "Holds 30 GiB, more than the fair share of 20 GiB while others wait."
    assert (two.ratio, two.above, two.why, two.wait_mean, two.wait_p95) == (0.5, False, "", 90.0, 120.0)
    (group,) = fairness.groups(people.values())
    assert (group.name, group.had, group.due, group.containers, group.members) == (
        "vision", 80.0, 80.0, 2, {"ada", "bob"},
    )  # fmt: skip
    assert [each.had for each in fairness.people(now - timedelta(days=1), now)] == [30.0, 10.0]
    curve = fairness.curve(now - timedelta(days=1), now)
    assert {each["name"]: [value for value in each["values"] if value] for each in curve["people"]} == {
        "ada": [1.5], "bob": [0.5],
    }  # fmt: skip


def test_rest_reports_and_the_page_carry_the_same_figures(week, client):
    answer = client.get("/api/v1/fairness/").json()
    first = answer["people"][0]
    assert (first["name"], first["had"], first["due"], first["ratio"], first["holds"]) == ("ada", 60, 40, 1.5, 30 * GIB)
    report = client.get("/api/v1/reports/allocations/").json()
    row = next(row for row in report["rows"] if row["group"] == "bob")
    assert (row["had_gib_hours"], row["due_gib_hours"], row["wait_mean"], row["wait_p95"]) == (20, 40, 90, 120)
    assert report["total"]["had_gib_hours"] == report["total"]["due_gib_hours"] == 80
    page = signed_in(week).get("/fairness/").content.decode()
    assert "used 1.50 times the fair share. Holds 30 GiB" in page
    assert "Entitled" not in page
    assert "Above their fair share: 1 of 2 people" in page


def test_attention_is_drawn_to_who_is_far_above_for_a_day_while_others_wait(ada, gpu):
    bob, now = make_user("bob"), timezone.now()
    for ago in range(24):
        hour(now, gpu, "ada", 30.0, 10.0, ago)
        hour(now, gpu, "bob", 0.0, 20.0, ago)
    assert above_share() == []  # nobody waits now
    make_container(bob, "notebook", gpu, started_at=timezone.now(), suspended_since=timezone.now())
    assert above_share() == [
        ("ada", "ada has had 3.0 times the fair share for a day; 1 container of others waits. See the page Fairness.")
    ]
    UsageHour.objects.filter(hour__lt=now.timestamp() // 3600 - 12).delete()
    assert above_share() == []  # half a day


def above_share() -> list[tuple[str, str]]:
    return [(item.person, item.message) for item in attention.items() if item.kind is attention.Kind.ABOVE_SHARE]


def test_an_operators_priority_counts_across_people_and_an_owners_does_not(ada, gpu, node):
    node.seen_at = timezone.now()
    node.save()
    made = make_container(ada, "training", gpu, started_at=timezone.now())
    changes = [steering.change(user, made, priority=5) for user in (make_user("chief", Role.OPERATOR), ada)]
    assert [each.arguments for each in changes] == [{"priority": 5, "across": True}, {"priority": 5}]


def test_schedulers_hear_of_other_shares_and_groups(ada, node, django_capture_on_commit_callbacks, monkeypatch):
    heard: list[str] = []
    monkeypatch.setattr(issuing, "hint", lambda node=None, what="wake": heard.append(what))
    with django_capture_on_commit_callbacks(execute=True):
        group = group_of("vision", ada, given=2)
        PersonShares.objects.create(user=ada)
        group.user_set.remove(ada)
    assert set(heard) == {"shares"}


def test_a_boost_that_is_over_is_none(boss, ada):
    """The form of the page gives back what it shows: other shares can be saved."""
    PersonShares.objects.create(user=ada, boost=3, boost_until=timezone.now() - timedelta(days=1))
    shown = boss.get(f"{PEOPLE}ada/shares/").json()
    assert (shown["boost"], shown["boost_until"]) == (1, None)
    form = limits.shares_fields(ada)
    browser = signed_in(make_user("chief", Role.ADMIN))
    asked = {"do": "shares", "shares": "2", "boost": form["boost"], "boost_until": form["boost_until"]}
    assert browser.post("/people/ada/", asked).status_code == 302
    assert in_force().people == {"ada": 2.0}


def test_what_is_held_of_a_card_for_which_nobody_waits_is_not_set_against_the_share_of_another(week, ada, gpu):
    make_container(ada, "elsewhere", make_gpu(gpu.node, index=1), started_at=timezone.now())
    Claim.objects.filter(container__name="elsewhere").update(granted=50 * GIB)
    Claim.objects.filter(container__name="training").update(granted=10 * GIB)
    now = timezone.now()
    one, *_ = fairness.people(now - timedelta(days=7), now)
    assert one.holds == 60 * GIB
    assert one.why == "Holds 10 GiB, within the fair share of 20 GiB while others wait."


def test_who_has_ended_all_is_not_said_to_hold_nothing_while_nobody_waits(week, ada):
    """bob waits still, on a card where ada has nothing any more."""
    Container.objects.filter(owner=ada).update(finished_at=timezone.now())
    Usage.objects.filter(person="ada").update(share=None)
    now = timezone.now()
    one, *_ = fairness.people(now - timedelta(days=7), now)
    assert one.why == "Held more than the fair share while others waited; holds nothing now."


def test_the_ratio_of_a_group_that_the_queue_goes_by_is_not_made_up(week, ada, client):
    group_of("vision", ada, week, given=2)
    (group,) = client.get("/api/v1/fairness/").json()["groups"]
    assert group["standing"] is None


def test_pages_say_which_of_two_ratios_they_show(week, ada):
    """The fairness page has that of the range; the queue goes by one in which usage fades."""
    for address in (f"/containers/{Container.objects.get(name='training').pk}/", "/people/ada/"):
        page = " ".join(signed_in(make_user("chief" + address[1], Role.ADMIN)).get(address).content.decode().split())
        assert '1.50 times the <a href="/fairness/">fair share</a> (past use fades by half every two days)' in page


def test_a_host_that_is_away_does_not_say_how_a_person_stands(week, ada, gpu):
    """Its scheduler counted last, and has not heard since what others count."""
    now = timezone.now()
    away = make_gpu(make_node(name="away", seen_at=now - timedelta(days=1)), index=1)
    Usage.objects.create(gpu=away, person="ada", at=now + timedelta(minutes=1), ratio=7.0, share=90 * GIB)
    one, *_ = fairness.people(now - timedelta(days=7), now)
    assert (one.standing, one.share) == (1.5, 20 * GIB)
