"""A node that is removed: not while it holds something, unless that is to count as lost."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from tests.support.machine import GIB, make_container, make_gpu, make_node
from web import audit
from web.errors import Problem
from web.live import figures, openmetrics
from web.models import AllocationEvent, AuditEntry, Claim, Command, Container, ExpectedBy, Node, State
from web.services import launching, nodes
from web.services.placement.place import Place

pytestmark = pytest.mark.django_db


@pytest.fixture
def held(ada: User) -> Container:
    """By a node that is away."""
    gone = make_node(name="gone", seen_at=timezone.now() - timedelta(hours=1))
    fields = {"name": "training", "node": gone, "suspended_since": timezone.now(), "queue_position": 1}
    container = make_container(ada, gpu=make_gpu(gone), quota=2 * GIB, **fields)
    Claim.objects.update(used=GIB, granted=GIB)
    Command.objects.create(kind=Command.Kind.PAUSE, container=container, node=gone, issued_by=ada)
    return container


def node() -> Node:
    return Node.objects.get(name="gone")


def test_one_that_holds_something_is_not_removed_and_the_reason_says_what_to_do(held: Container) -> None:
    with pytest.raises(Problem) as caught:
        nodes.expel("root", "gone")
    assert caught.value.code == "node_holds"
    assert '"gone" holds 1 container that may still run (training).' in caught.value.message
    assert "--force" in caught.value.message
    held.refresh_from_db()
    assert (held.finished_at, node().removed_at) == (None, None)
    assert not AuditEntry.objects.filter(action="node-removed").exists()


def test_with_force_what_it_held_has_ended_as_lost_with_it(held: Container) -> None:
    nodes.expel("root", "gone", force=True)
    held.refresh_from_db()
    assert (held.state, held.reason) == (State.FAILED, "Lost with its node.")
    assert held.removed_at is not None
    claim = held.claims.get()
    assert (claim.quota, claim.used, claim.granted) == (2 * GIB, 0, 0)
    assert not Container.objects.queued().exists()
    (event,) = AllocationEvent.objects.filter(container=held)
    assert (event.kind, event.detail) == ("ended", "Lost with its node.")
    command = Command.objects.get()
    assert (command.outcome, command.code) == (Command.Outcome.REFUSED, "node_removed")
    assert AuditEntry.objects.get(action="node-removed").detail == {"lost": [str(held.pk)]}
    assert node().removed_at is not None
    assert audit.verify()[1] == []


def test_of_what_is_lost_with_its_node_no_use_and_no_expectation_is_shown(held: Container) -> None:
    """docs/rest.md: null once it has ended, as where its node's scheduler tells the end."""
    now = timezone.now()
    Container.objects.update(cpus_used=3.0, memory_used=GIB, expected_at=now, expected_by=ExpectedBy.LIMITS)
    nodes.expel("root", "gone", force=True)
    held.refresh_from_db()
    assert (held.cpus_used, held.memory_used, held.expected_at, held.expected_by) == (None, None, None, "")


def test_what_a_node_whose_clock_is_ahead_held_has_not_ended_before_its_start(held: Container) -> None:
    ahead = timezone.now() + timedelta(hours=2)
    Container.objects.update(started_at=ahead)
    nodes.expel("root", "gone", force=True)
    held.refresh_from_db()
    assert held.finished_at == ahead


def test_one_that_lives_with_the_appliances_own_rights_is_never_removed(held: Container) -> None:
    Node.objects.update(seen_at=timezone.now())
    with pytest.raises(Problem, match="runs"):
        nodes.expel("root", "gone", force=True)
    held.refresh_from_db()
    assert held.finished_at is None


def test_over_rest_it_has_to_be_asked_for(held: Container, admin_user: User) -> None:
    client = APIClient()
    client.force_authenticate(admin_user)
    assert client.delete("/api/v1/nodes/gone/").json()["error"]["code"] == "node_holds"
    assert client.delete("/api/v1/nodes/gone/?force=perhaps").status_code == 400
    assert client.delete("/api/v1/nodes/gone/?force=true").status_code == 204
    held.refresh_from_db()
    assert held.reason == "Lost with its node."


def test_one_whose_scheduler_has_just_started_is_not_removed(held: Container) -> None:
    """It has given no sign of life yet, and takes over what lives: that would be lost, and then ended by it."""
    Node.objects.update(holder="a boot and a home", started_at=timezone.now())
    with pytest.raises(Problem, match="runs"):
        nodes.expel("root", "gone", force=True)
    held.refresh_from_db()
    assert held.finished_at is None


def test_one_whose_scheduler_comes_back_in_the_middle_of_its_removal_is_not_removed(
    held: Container, admin_user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = nodes.named

    def and_back(name: str) -> Node:
        found = named(name)
        Node.objects.update(seen_at=timezone.now())
        return found

    monkeypatch.setattr(nodes, "named", and_back)
    Node.objects.update(role="of_its_own")  # which may be taken away from one that lives, but not by this
    with pytest.raises(Problem, match="runs"):
        nodes.remove(admin_user, "gone", force=True)
    held.refresh_from_db()
    assert held.finished_at is None


def test_launch_that_had_chosen_it_a_moment_before_ends_as_lost_too(
    held: Container, ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would ever end it: its node takes no command any more."""
    Node.objects.update(role="of_its_own", seen_at=timezone.now())
    place = launching.place

    def and_removed(*arguments: Any, **options: Any) -> Place:
        chosen = place(*arguments, **options)
        nodes.expel("root", "gone", force=True)
        return chosen

    monkeypatch.setattr(launching, "place", and_removed)
    monkeypatch.setattr(nodes.roles, "cut", lambda node: None)
    launch = launching.launch(ada, {"image": "local", "gpu_memory": "1GiB"})
    assert Container.objects.live().get() == launch.container
    nodes.lose_late()
    launch.refresh_from_db()
    assert (launch.outcome, launch.code) == (Command.Outcome.REFUSED, "node_removed")
    assert not Container.objects.live().exists()
    nodes.lose_late()
    assert AuditEntry.objects.filter(action="node-removed").count() == 2
    assert audit.verify()[1] == []


def test_one_that_is_removed_is_none_that_metrics_call_down(held: Container) -> None:
    """Somebody would be woken each night for a host that is gone."""
    assert 'gpushare_scheduler_up{node="gone"} 0' in openmetrics.text(figures.read())
    nodes.expel("root", "gone", force=True)
    assert "gone" not in openmetrics.text(figures.read())


def test_a_command_of_an_empty_node_does_not_stay_open_after_its_removal(ada: User) -> None:
    gone = make_node(name="gone", seen_at=timezone.now() - timedelta(hours=1))
    command = Command.objects.create(kind=Command.Kind.POLICY, node=gone, issued_by=ada)
    nodes.expel("root", "gone")
    command.refresh_from_db()
    assert (command.outcome, command.code, command.done_at is None) == ("refused", "node_removed", False)
    late = Command.objects.create(kind=Command.Kind.POLICY, node=gone, issued_by=ada)  # who asked did not see it go
    nodes.lose_late()
    late.refresh_from_db()
    assert (late.outcome, late.code) == ("refused", "node_removed")
    assert AuditEntry.objects.filter(action="node-removed").count() == 1
