"""What needs somebody now: there as long as it is so, and gone when it is not."""

from datetime import timedelta

import pytest
from django.db import connection
from django.http import QueryDict
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.support import rows
from tests.support.people import client_for
from tests.support.site import person
from web.models import Claim, Container, Delivery, Episode, Gpu, Node
from web.notifying import episodes
from web.notifying.words import labels_of
from web.pages import table
from web.services import attention
from web.services.attention import containers

pytestmark = pytest.mark.django_db


def items_now():
    return [(item.kind.value, item.person) for item in attention.items()]


def message_of(kind):
    (found,) = [item.message for item in attention.items() if item.kind == kind]
    return found


@pytest.fixture
def card():
    return rows.gpu()


@pytest.fixture
def ann():
    return person("ann", "user")


def test_while_all_is_well_there_is_nothing(card, ann):
    rows.container("train", ann, card, quota=2, used=1)
    rows.container("short-wait", ann, card, suspended_since=rows.ago(30))
    rows.container("idle-and-alone", ann, rows.gpu(1), quota=2, used=1, idle_since=rows.ago(4000))
    assert items_now() == []


def test_a_scheduler_or_an_engine_that_is_away(card):
    Node.objects.update(seen_at=rows.ago(60))
    assert items_now() == [("scheduler_away", "")]
    Node.objects.update(seen_at=timezone.now() + timedelta(hours=1), engine_error="Docker does not answer.")
    assert [item.message for item in attention.items()] == ["Docker does not answer."]
    Node.objects.update(engine_error="")
    assert items_now() == []


def test_a_sign_of_life_that_gets_too_old_while_the_database_answers_hides_nothing(card, monkeypatch):
    """A busy host: neither what is wrong was shown, nor that the scheduler is away."""
    Gpu.objects.filter(pk=card.pk).update(drained_at=rows.ago(60), drain_reason="New fans.")
    asked = iter([True])
    monkeypatch.setattr(Node, "is_alive", lambda _: next(asked, False))
    assert items_now() == [("drained", "")]


def test_what_a_node_that_is_away_last_said_is_not_passed_on_and_is_not_over(card, ann):
    """Nobody knows whether it is still so, and nobody can do anything about it from here. What has ended has ended."""
    Gpu.objects.update(xid=79, xid_at=timezone.now(), hot_since=timezone.now(), foreign=2 << 30, ecc_errors=3)
    waits = rows.container("waits", ann, card, suspended_since=rows.ago(400))
    rows.container("holds", ann, card, used=1, paused_at=rows.ago(400), no_turns="It did not stop.")
    for number in range(3):
        ended(f"run-{number}", ann, card, 5, 1, 60)
    kinds = {kind for kind, _ in items_now()}
    assert kinds == {"xid", "ecc", "hot", "foreign", "waiting", "holding", "no_turns", "failing"}
    assert {item.node for item in attention.items()} == {card.node.name}
    episodes.look(timezone.now())
    Node.objects.update(seen_at=rows.ago(60))
    assert [kind for kind, _ in items_now()] == ["scheduler_away", "failing"]
    episodes.look(timezone.now())
    Container.objects.filter(pk=waits.pk).update(suspended_since=None)
    episodes.look(timezone.now())
    assert set(Episode.objects.filter(gone_at=None).values_list("kind", flat=True)) == kinds | {"scheduler_away"}
    Node.objects.update(seen_at=timezone.now() + timedelta(hours=1))
    episodes.look(timezone.now())
    gone = set(Episode.objects.exclude(gone_at=None).values_list("kind", flat=True))
    assert gone == {"scheduler_away", "waiting", "holding"}


def test_of_several_nodes_each_item_says_which_it_is_about(card, ann):
    other = Node.objects.create(
        name="gpu2", seen_at=timezone.now() + timedelta(hours=1), engine_error="Docker is away."
    )
    far = rows.gpu(1, node=other, xid=79, xid_at=timezone.now())
    rows.container("rude", ann, far, no_turns="It did not stop.")
    rows.container("here", ann, card, no_turns="It did not stop.")
    found = {(item.kind.value, item.node) for item in attention.items()}
    away = {("engine_away", "gpu2"), ("xid", "gpu2"), ("no_turns", "gpu2")}
    assert found == away | {("no_turns", card.node.name)}
    answer = client_for(ann).get("/api/v1/attention/").json()["results"]
    assert {(item["kind"], item["node"]) for item in answer} == found
    episodes.look(timezone.now())
    labels = [labels_of(Delivery(episode=episode)) for episode in Episode.objects.all()]
    assert {(each["kind"], each["node"]) for each in labels} == found


def test_a_card_that_is_gone_matters_while_somebody_has_a_quota_on_it(card, ann):
    made = rows.container("train", ann, card, quota=2, used=1)
    Gpu.objects.update(present=False)
    assert items_now() == [("gpu_gone", "")]
    Container.objects.filter(pk=made.pk).update(finished_at=timezone.now(), exit_code=0)
    assert items_now() == []


def test_a_card_out_of_service_is_the_cause_of_what_is_reported_of_those_on_it(card, ann):
    rows.container("train", ann, card, used=1)
    rows.container("elsewhere", ann, rows.gpu(1), used=1)
    Gpu.objects.filter(pk=card.pk).update(drained_at=rows.ago(60), drain_reason="New fans.")
    cause, hung = attention.items()
    assert (cause.person, cause.because) == ("", "")
    assert (hung.person, hung.because) == ("ann", cause.key)


def test_foreign_memory_is_what_no_container_accounts_for(card, ann):
    made = rows.container("sly", ann, card, quota=2, used=1)
    Gpu.objects.update(foreign=700 << 20)
    assert message_of("foreign").startswith("700 MiB of GPU 0")
    Claim.objects.filter(container=made).update(unexplained=600 << 20)
    assert items_now() == [("unexplained", "ann")]
    assert message_of("unexplained") == '"sly" holds 600 MiB beyond what was charged to it.'


def test_each_process_that_holds_foreign_memory_is_named(card):
    held = [{"pid": 100 + n, "bytes": 1 << 30, "user": "eve", "command": f"mine-{n}"} for n in range(5)]
    Gpu.objects.update(foreign=5 << 30, strangers=held)
    message = message_of("foreign")
    assert [n for n in range(5) if f"process {100 + n} of eve (mine-{n}), 1 GiB" not in message] == []


def test_a_process_that_the_shim_is_not_in(card, ann):
    made = rows.container("static", ann, card, quota=2, used=1)
    Claim.objects.filter(container=made).update(processes=[{"pid": 7, "used": 0, "real": 9, "uncapped": True}])
    assert items_now() == [("uncapped", "ann")]
    Claim.objects.filter(container=made).update(processes=[{"pid": 7, "used": 9, "real": 9, "uncapped": False}])
    assert items_now() == []


def test_the_table_marks_those_reported_as_uncapped(card, ann):
    """It went on saying so of a node that is away, and the live page took it back: nobody knows how it is there now."""
    rows.container("static", ann, card, quota=2, used=1)
    for past in ({"unexplained": 1 << 20}, {"unexplained": 0, "processes": [{"pid": 7, "uncapped": True}]}):
        Claim.objects.update(**past)
        for seen_at, seen in ((rows.ago(-3600), True), (rows.ago(3600), False)):
            Node.objects.update(seen_at=seen_at)
            assert [item["past_shim"] for item in table.page(ann, QueryDict()).items] == [seen]
            assert any(kind in ("uncapped", "unexplained") for kind, _ in items_now()) == seen


def test_who_waits_for_long_and_who_keeps_them_waiting(card, ann, monkeypatch):
    bob = person("bob", "user")
    waits = rows.container("waits", ann, card, quota=3, suspended_since=rows.ago(400), queue_reason="Needs 3 GiB.")
    Claim.objects.filter(container=waits).update(waiting=3 << 30)
    rows.container("paused", bob, card, quota=2, used=2, paused_at=rows.ago(500))
    rows.container("idle", bob, card, quota=2, used=1, idle_since=rows.ago(900))
    rows.container("elsewhere", bob, rows.gpu(1), quota=2, used=1, paused_at=rows.ago(500))
    assert items_now() == [("holding", "bob"), ("holding", "bob"), ("waiting", "ann")]  # the cause first
    causes = {item.key: item.message for item in attention.items()}
    (because,) = [item.because for item in attention.items() if item.kind == "waiting"]
    assert causes[because].startswith('"paused" is paused and holds 2 GiB')
    assert message_of("waiting") == '"waits" waits for memory. Needs 3 GiB.'
    found = {item.message: item.acts for item in attention.items() if item.kind == "holding"}
    assert found == {
        '"paused" is paused and holds 2 GiB; "waits" waits for memory.': ("resume", "free", "kill"),
        '"idle" is idle and holds 1 GiB; "waits" waits for memory.': ("free", "kill"),
    }
    monkeypatch.setattr(containers, "LONG_SECONDS", 600)
    assert [kind for kind, _ in items_now()] == ["holding", "holding"]
    Node.objects.update(cannot_swap="The driver is too old.")
    assert ("resume", "kill") in [item.acts for item in attention.items()]
    Container.objects.filter(pk=waits.pk).update(suspended_since=None)
    assert items_now() == []


def test_one_that_takes_no_part_in_the_turns(card, ann):
    rows.container("rude", ann, card, no_turns="It did not stop within 10 s.")
    assert message_of("no_turns") == '"rude" does not share compute time. It did not stop within 10 s.'


def ended(name, owner, card, after, code, ago, **fields):
    """It started so many seconds ago, and ended with this code `after` its start."""
    times = {"started_at": rows.ago(ago), "finished_at": rows.ago(ago - after)}
    return rows.container(name, owner, card, exit_code=code, command=["train.py"], **times, **fields)


def test_a_launch_that_fails_again_and_again_soon_after_its_start(card, ann):
    ended("first", ann, card, 5, 1, 600)
    ended("second", ann, card, 5, 1, 500)
    assert items_now() == []
    third = ended("third", ann, card, 2, 1, 400, reason="The image has no train.py.")
    assert items_now() == [("failing", "ann")]
    (item,) = attention.items()
    said = '"third" failed 3 times in a row within seconds of its start. The last: The image has no train.py.'
    assert item.message == said
    ended("somebody-elses", person("bob", "user"), card, 5, 1, 300)
    fourth = ended("fourth", ann, card, 2, 2, 300)
    (again,) = attention.items()
    assert (again.key, again.container) == (item.key, fourth)  # the same trouble, shown once
    assert again.acts == ("again",)
    assert item.container == third
    ended("works", ann, card, 200, 0, 250)
    assert items_now() == []


def test_a_launch_that_fails_for_hours_is_one_and_the_same_trouble(card, ann):
    for minutes in range(90):
        ended(f"run-{minutes}", ann, card, 5, 1, 60 * minutes + 30)
    (now,), (later,) = attention.items(), attention.items(timezone.now() + timedelta(minutes=10))
    assert now.key == later.key


def test_rest_tells_what_the_reader_may_do(card, ann):
    waits = rows.container("waits", ann, card, quota=3, suspended_since=rows.ago(400))
    rows.container("rude", person("bob", "user"), card, no_turns="It did not stop.")

    def asked(user):
        answer = client_for(user).get("/api/v1/attention/").json()
        return answer["count"], {item["kind"]: item["acts"] for item in answer["results"]}

    assert asked(ann) == (2, {"waiting": ["kill"], "no_turns": []})
    assert asked(person("op", "operator"))[1] == {"waiting": ["first", "kill"], "no_turns": ["kill"]}
    (first, _) = client_for(ann).get("/api/v1/attention/").json()["results"]
    assert first["container"] == str(waits.pk)
    assert first["person"] == "ann"
    assert client_for(ann).get("/api/v1/attention/?page_size=1").json()["count"] == 2
    assert client_for(ann).get("/api/v1/attention/?nonsense=1").status_code == 400


def test_where_nothing_here_can_help_a_command_for_the_host_does(card, ann):
    held = [{"pid": pid, "bytes": 1 << 30, "user": "eve", "command": "mine"} for pid in (7, 11)]
    Gpu.objects.update(foreign=2 << 30, strangers=held, xid=79, xid_at=timezone.now(), hot_since=timezone.now())
    full = {"of": "the database", "free": 1, "total": 9, "since": 0}
    Node.objects.update(engine_error="Docker is away.", skew=90, nearly_full=[full, full | {"of": "host memory"}])
    commands = {item.kind.value: item.command for item in attention.items()}
    assert commands["foreign"].endswith("-p 7,11")
    assert commands["clock_wrong"] == "timedatectl set-ntp true"
    assert {"engine_away", "nearly_full", "xid", "hot"} <= {kind for kind, command in commands.items() if command}
    answer = client_for(ann).get("/api/v1/attention/").json()["results"]
    assert {item["kind"]: item["command"] for item in answer} == commands
    Gpu.objects.update(strangers=[])
    assert {item.kind: item.command for item in attention.items()}["foreign"] == "nvidia-smi"
    assert attention.without_database()[0].command


def test_what_somebody_wrote_into_environments_is_not_read_however_often_it_fails(card, ann):
    rows.container("held", ann, card, quota=2, used=1, paused_at=rows.ago(60), no_turns="It is old.")
    rows.container("waits", ann, card, quota=1, suspended_since=rows.ago(9999))
    for number in range(3):
        ended(f"run-{number}", ann, card, 5, 1, 60, environment={"LARGE": "x" * 1000})
    with CaptureQueriesContext(connection) as asked:
        assert {kind for kind, _ in items_now()} == {"waiting", "holding", "no_turns", "failing"}
    assert not [query["sql"] for query in asked if '"environment"' in query["sql"]]


def test_whoever_launches_in_a_loop_makes_it_look_at_no_more_than_so_many_runs(card, ann, monkeypatch):
    monkeypatch.setattr(containers, "ENDED_MOST", 4)
    for number in range(6):
        ended(f"run-{number}", ann, card, 5, 1, 60 + 10 * number)
    assert '"run-0" failed 4 times in a row' in message_of("failing")


def test_every_key_finds_room_in_the_record_of_it(card):
    """One that does not keeps every notification from being sent: they are written together."""
    folders = [f"the disk of /{'deep/' * 200}{number}" for number in range(2)]
    full = [{"of": folder, "free": 1, "total": 2, "since": 1} for folder in folders]
    Node.objects.update(name="n" * 255, nearly_full=full, engine_error="x", release="0.0.1", skew=99.0)
    keys = [item.key for item in attention.items()]
    assert len({*keys}) == len(keys) == 5
    assert max(map(len, keys)) <= Episode._meta.get_field("key").max_length
