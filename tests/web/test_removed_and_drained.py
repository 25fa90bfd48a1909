"""A Swarm's node that was drained and is removed then: nothing new comes to it, until it is a node again."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from scheduler.engines.swarm.manager import SPARED, SwarmManager
from scheduler.store.pending_placements import drained
from tests.support.machine import make_node
from web.models import Node
from web.services import nodes

pytestmark = pytest.mark.django_db


class Managers:
    """What Docker says of its nodes, and what it is asked to do. It is not asked for more."""

    def __init__(self, *names: str) -> None:
        self.specs: dict[str, dict[str, Any]] = {
            name: {"Availability": "active", "Labels": {"a": "b"}} for name in names
        }
        self.api = self.look = self

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"ID": name, "Version": {"Index": 1}, "Description": {"Hostname": name}, "Spec": spec}
            for name, spec in self.specs.items()
        ]

    def update_node(self, id_: str, version: int, spec: dict[str, Any]) -> None:
        self.specs[id_] = spec

    def take(self, what: Any) -> dict[str, str]:
        SwarmManager._spare(SimpleNamespace(_look=self, _api=self), what)  # type: ignore[arg-type]
        return {name: spec["Availability"] for name, spec in self.specs.items()}


def test_one_that_is_removed_while_it_is_drained_gets_nothing_new() -> None:
    swarm = Managers("gone", "other", "nobodys")
    make_node(name="gone", seen_at=None, drained_at=timezone.now())
    make_node(name="other")
    assert swarm.take(drained()) == {"gone": "pause", "other": "active", "nobodys": "active"}
    nodes.expel("root", "gone")
    assert swarm.take(drained())["gone"] == "pause"
    assert SPARED in swarm.specs["gone"]["Labels"]
    Node.objects.filter(name="gone").update(removed_at=None)  # it has joined again
    assert swarm.take(drained())["gone"] == "active"
    assert swarm.specs["gone"]["Labels"] == {"a": "b"}


def test_what_somebody_else_has_paused_stays_so() -> None:
    swarm = Managers("other")
    swarm.specs["other"] = {"Availability": "pause", "Labels": {}}
    make_node(name="other")
    assert swarm.take(drained()) == {"other": "pause"}
