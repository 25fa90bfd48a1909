"""What an owner may make a megabyte of is not read where many containers are, a hundred and more at a time."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import make_container
from tests.support.people import client_for, make_user, signed_in
from web.history import samples
from web.history.marks import marks
from web.models import Claim, Notice, UsageSample, Watch
from web.notifying import happenings


def test_neither_telling_owners_nor_the_history_nor_the_events_read_environments(client, ada, gpu):
    now = timezone.now()
    Watch.objects.create(pk=1, event=0)
    train = make_container(ada, "train", gpu, environment={"LARGE": "x" * 1000})
    append(train, now - timedelta(minutes=5), EventKind.KILLED, gpu)
    append(train, now - timedelta(minutes=4), EventKind.ENDED)
    UsageSample.objects.create(at=now - timedelta(seconds=1), gpu=gpu, container=train, used=1, peak=1)
    with CaptureQueriesContext(connection) as asked:
        happenings.look(now)
        assert [mark["name"] for mark in marks(gpu, now - timedelta(hours=1), now)] == ["train"]
        assert samples.moment(gpu, now)["containers"][0]["name"] == "train"
        samples.holders(gpu, now - timedelta(hours=1), now)
        events = client.get("/api/v1/allocations/").json()["results"]
    assert Notice.objects.count() == 1
    assert {event["name"] for event in events} == {"train"}
    assert not [query["sql"] for query in asked if '"environment"' in query["sql"]]


def read(asked: CaptureQueriesContext) -> list[str]:
    return [query["sql"] for query in asked if '"environment"' in query["sql"]]


@pytest.mark.parametrize(
    "path", ["/", "/?state=all&q=train", "/reports/", "/fairness/", "/launch/", "/api/v1/queue/", "/api/v1/gpus/"]
)
def test_neither_pages_nor_the_queue_read_environments(ada, gpu, path):
    train = make_container(ada, "train", gpu, environment={"LARGE": "x" * 1000}, suspended_since=timezone.now(),
                           idle_since=timezone.now())  # fmt: skip
    Claim.objects.filter(container=train).update(used=1)
    append(train, timezone.now() - timedelta(minutes=5), EventKind.SWAPPED_OUT, gpu)
    browser = signed_in(ada)
    with CaptureQueriesContext(connection) as asked:
        assert b"train" in browser.get(path).content or path in ("/reports/", "/api/v1/gpus/")
    assert asked
    assert not read(asked)


def test_what_is_done_to_many_reads_no_environments(ada, gpu):
    train = make_container(ada, "train", gpu, environment={"LARGE": "x" * 1000})
    stranger = signed_in(make_user("eve"))
    with CaptureQueriesContext(connection) as asked:
        output = stranger.post("/containers/act/", {"action": "kill", "id": str(train.pk)}).content.decode()
    assert "train" in output  # it was read, and refused
    assert not read(asked)


def test_a_list_over_rest_reads_environments_for_who_may_see_them_alone(client, ada, gpu):
    train = make_container(ada, "train", gpu, environment={"LARGE": "x" * 1000}, command=["python", "a.py"])
    make_container(ada, "empty", gpu)
    bobs = make_container(make_user("bob"), "bobs", gpu, environment={"HIS": "x"})
    with CaptureQueriesContext(connection) as asked:
        shown = client_for(make_user("eve")).get("/api/v1/containers/").json()["results"]
    assert {row["env"] for row in shown} == {None}
    assert not read(asked)
    with CaptureQueriesContext(connection) as asked:
        rows = {row["name"]: row for row in client.get("/api/v1/containers/").json()["results"]}
    assert (rows["train"]["env"], rows["train"]["command"]) == (["LARGE"], ["python", "a.py"])
    assert (rows["empty"]["env"], rows["bobs"]["env"]) == ([], None)
    (query,) = read(asked)
    assert str(train.pk.hex) in query.replace("-", "")
    assert str(bobs.pk.hex) not in query.replace("-", "")
