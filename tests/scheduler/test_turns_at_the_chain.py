"""All nodes append to one chain, one after the other: each keeps it for as few statements as can be."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduler.store.batches import write_batch
from scheduler.store.database import Here
from scheduler.store.journal import Numbered
from tests.support.machine import make_container, make_gpu, make_node
from tests.support.people import make_user
from web.audit import verify
from web.models import AllocationEvent, Claim, Gpu, UsageSample

pytestmark = pytest.mark.django_db
KEPT = ("web_chain", "web_allocationevent", "web_container", "web_seal")  # who owns them is in the seal


def test_samples_and_rows_are_written_before_the_chain_is_taken():
    node = make_node(holder="us")
    gpu = make_gpu(node)
    container = make_container(make_user("ada"), "a", gpu, node=node)
    now = timezone.now()
    events = [
        Numbered(place, AllocationEvent(at=now, kind="accepted", container_id=container.pk, gpu=gpu, used_after=place))
        for place in (1, 2)
    ]
    samples = [UsageSample(at=now, gpu=gpu, container=each, used=1, peak=1) for each in (container, None)]
    rows = {(Claim, (container.pk, gpu.pk)): {"used": 7}, (Gpu, gpu.pk): {"real": 8}}
    with CaptureQueriesContext(connection) as asked:
        write_batch(rows, events, samples, Here(node.pk, "us"), 0)
    written = [each["sql"] for each in asked]
    taken = next(place for place, sql in enumerate(written) if "web_chain" in sql)
    after = [sql for sql in written[taken:] if '"web_' in sql]
    assert all(any(f'"{table}"' in sql for table in KEPT) and "web_usagesample" not in sql for sql in after), after
    assert len(after) <= 7
    assert UsageSample.objects.count() == 2
    assert AllocationEvent.objects.count() == 2
    assert verify() == (1, [])
