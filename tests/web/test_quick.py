"""What is shown quickly is what the REST framework itself would show."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework import serializers

from tests.support.machine import GIB, make_container, make_gpu, make_node
from web.api.answers import ContainerAnswer, GpuAnswer, WaitingAnswer
from web.api.gpus import Gpus
from web.api.protocol.quick import Quick
from web.models import Container


def plain(kind):
    """The same serializer, and those in it, as the framework has it."""
    bases = tuple(base for base in kind.__mro__ if base not in (kind, Quick, object))
    fields = {
        name: serializers.ListSerializer(child=plain(type(field.child))(), source=field.source)
        if isinstance(field, serializers.ListSerializer)
        else field
        for name, field in kind._declared_fields.items()
    }
    methods = {name: value for name, value in vars(kind).items() if name.startswith(("get_", "_shows", "_of"))}
    meta = {"Meta": kind.Meta} if hasattr(kind, "Meta") else {}
    return type(kind.__name__, (bases[0],), {**methods, **fields, **meta})


@pytest.fixture
def rows(ada):
    now = timezone.now()
    gpus = [make_gpu(make_node(), capacity=GIB, utilisation=None, temperature=-1, power=1.5)]
    gpus.append(make_gpu(gpus[0].node, index=1))
    since = {"suspended_since": now, "queue_position": 2, "queue_bytes": 3, "queue_reason": "It waits."}
    for number, fields in enumerate([
        {"started_at": None}, {}, since, {"paused_at": now}, {"finished_at": now, "exit_code": 0, "cpus": 2},
        {"finished_at": now, "exit_code": -9, "kill_requested_at": now, "reason": "Killed."},
        {"command": ["a", "b"], "environment": {"Z": "1", "A": "2"}, "ports": [{"host": 1}], "ttl_seconds": 5,
         "created_at": now - timedelta(days=1), "memory": GIB, "gpu_memory": None},
    ]):  # fmt: skip
        made = make_container(ada, f"c{number}", gpus[number % 2], **fields)
        if number == 3:
            made.claims.create(gpu=gpus[0], quota=1)
    return list(Container.objects.whole())


@pytest.mark.parametrize("kind", [ContainerAnswer, WaitingAnswer])
@pytest.mark.parametrize("shows", [None, lambda container: container.name == "c6"])
def test_containers_are_represented_as_by_the_framework(rows, kind, shows):
    for row in rows:
        context = {"shows": shows}
        expected = plain(kind)(row, context=context).data
        assert list(kind(row, context=context).data.items()) == list(expected.items())
    assert len(rows) == 7


def test_gpus_are_represented_as_by_the_framework(rows):
    found = list(Gpus().get_queryset())
    assert GpuAnswer(found, many=True).data == plain(GpuAnswer)(found, many=True).data
    assert len(found) == 2
