"""What an owner may make a megabyte of is not read where many containers are, a hundred and more at a time."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import make_container
from web.history import samples
from web.history.marks import marks
from web.models import Notice, UsageSample, Watch
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
