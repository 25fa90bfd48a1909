"""What a Swarm begins again: each run is a container of its own, on whichever node, until somebody has ended it."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from tests.support.machine import GIB, make_gpu, make_node
from web.errors import Problem
from web.models import Claim, Command, Container, Gpu, Node
from web.models.states import LOST
from web.people import allowances
from web.services import runs, steering
from web.services.placement import accept_placement
from web.services.placement.placement_ticket import PlacementTicket

pytestmark = pytest.mark.django_db


@pytest.fixture
def nodes(db: None) -> list[Node]:
    made = [make_node(name=name) for name in ("one", "two")]
    for number, node in enumerate(made):
        make_gpu(node, number)
    Gpu.objects.update(index=0)
    return made


@pytest.fixture
def ada(db: None) -> User:
    return User.objects.create_user("ada")


@pytest.fixture
def first(ada: User) -> Container:
    """One that was handed to a Swarm, and is to be begun again."""
    return Container.objects.create(
        owner=ada, name="job", image="x", engine="swarm", handed="key", gpu_memory=GIB, restart="always", priority=7,
        command=["train"], environment={"A": "1"}, ttl_seconds=100.0,
    )  # fmt: skip


def take(node: Node, first: Container, mount: str) -> Container:
    return accept_placement.accept(node.pk, "volume", mount, PlacementTicket(first.pk, GIB, (0,), "key"))


def goes(container: Container, **fields: Any) -> None:
    Container.objects.filter(pk=container.pk).update(**fields)


def ends(container: Container, **fields: Any) -> None:
    now = timezone.now()
    goes(container, **{"started_at": now - timedelta(seconds=30), "finished_at": now, "exit_code": 1} | fields)


def refused(node: Node, first: Container, mount: str = "other") -> str:
    with pytest.raises(Problem) as caught:
        take(node, first, mount)
    assert not Container.objects.filter(mount=mount).exists()
    return caught.value.code


def test_a_run_after_the_first_is_a_container_with_the_same_fields_and_claims_of_its_own(nodes, first) -> None:
    assert take(nodes[0], first, "m1").pk == first.pk
    ends(first)
    accept_placement.require_wanted(PlacementTicket(first.pk, GIB, (0,), "key"))
    again = take(nodes[1], first, "m2")
    assert (again.pk != first.pk, again.run_of_id, again.node, again.name) == (True, first.pk, nodes[1], "job")
    assert (again.command, again.environment, again.priority) == (["train"], {"A": "1"}, 7)
    assert [(claim.gpu.uuid, claim.quota) for claim in again.claims.all()] == [("GPU-1", GIB)]
    assert take(nodes[1], first, "m2").pk == again.pk
    assert Claim.objects.filter(container=first).count() == 1  # what it had stays recorded
    assert again.node_reason == "Docker's Swarm has begun it again: it is run 2 of job."
    began = Container.objects.get(pk=first.pk).started_at
    left = 100 - (timezone.now() - began).total_seconds()
    assert left <= (again.ttl_seconds or 0) <= 70  # one time limit for all runs


def test_a_run_has_what_the_swarm_has_reserved_whatever_the_one_before_was_given(nodes, first) -> None:
    """A scheduler that takes it over gives it what its record says."""
    take(nodes[0], first, "m1")
    goes(first, gpu_memory=2 * GIB)  # it was changed while it ran
    ends(first)
    again = take(nodes[1], first, "m2")
    assert (again.gpu_memory, again.claims.get().quota) == (GIB, GIB)


def test_no_run_begins_beside_one_that_lives(nodes, first) -> None:
    take(nodes[0], first, "m1")
    assert refused(nodes[1], first) == "started_already"
    goes(first, started_at=timezone.now())
    assert refused(nodes[1], first) == "started_already"
    ends(first)
    take(nodes[0], first, "m2")
    assert refused(nodes[0], first) == "started_already"


def test_a_host_whose_clock_is_ahead_begins_no_run_beside_one_that_lives(nodes, first, monkeypatch) -> None:
    """Signs of life are stamped by the database's clock; of that of its own it was shown that all others are away."""
    take(nodes[0], first, "m1")
    goes(first, started_at=timezone.now(), ttl_seconds=None)
    ahead = timezone.now() + timedelta(hours=2)  # beyond all signs of life
    monkeypatch.setattr(timezone, "now", lambda: ahead)
    assert refused(nodes[1], first) == "started_already"


def test_where_its_node_is_away_it_goes_on_elsewhere_and_what_was_there_stays_as_it_was(nodes, first) -> None:
    take(nodes[0], first, "m1")
    goes(first, started_at=timezone.now())
    Node.objects.filter(name="one").update(seen_at=timezone.now() - timedelta(minutes=1))
    again = take(nodes[1], first, "m2")
    first.refresh_from_db()
    assert (first.finished_at, first.node, again.node) == (None, nodes[0], nodes[1])
    assert again.name == f"job-{str(again.pk)[:8]}"  # the name is still taken


@pytest.mark.parametrize(
    "fields", [{"kill_requested_at": timezone.now()}, {"removed_at": timezone.now()}], ids=["killed", "removed"]
)
def test_what_was_killed_or_removed_is_not_begun_again_whichever_run_it_was(nodes, first, fields) -> None:
    take(nodes[0], first, "m1")
    ends(first)
    again = take(nodes[1], first, "m2")
    ends(again, **fields)
    Command.objects.create(kind="remove", container=again)
    first.refresh_from_db()
    assert runs.is_over(first)
    assert refused(nodes[0], first) == "called_off"
    with pytest.raises(Problem, match="was cancelled"):
        accept_placement.require_wanted(PlacementTicket(first.pk, GIB, (0,), "key"))


@pytest.mark.parametrize("reason", ["", LOST], ids=["forgotten by Docker", "lost with its node"])
def test_what_nobody_here_has_removed_is_begun_again(nodes, first, reason) -> None:
    """As after `docker system prune` on its node, or once that is removed by force, while no other has room."""
    take(nodes[0], first, "m1")
    ends(first, removed_at=timezone.now(), reason=reason)
    first.refresh_from_db()
    assert not runs.is_over(first)
    assert take(nodes[1], first, "m2").run_of_id == first.pk


def test_what_docker_has_forgotten_is_still_ended_by_its_removal(nodes, first, ada) -> None:
    take(nodes[0], first, "m1")
    ends(first, removed_at=timezone.now())
    first.refresh_from_db()
    command = steering.remove(ada, first)
    assert (command.outcome, command.message) == (Command.Outcome.DONE, "It is not begun again.")
    assert runs.is_over(first)
    assert refused(nodes[1], first) == "called_off"
    with pytest.raises(Problem, match="removed already"):
        steering.remove(ada, first)


def test_removed_while_a_run_is_admitted_none_begins(nodes, first, ada, monkeypatch) -> None:
    """The host has asked whether another run may begin, and waits for its owner, whom a removal holds just then."""
    take(nodes[0], first, "m1")
    ends(first, removed_at=timezone.now())
    first.refresh_from_db()
    hold = allowances.hold

    def after_a_removal(user: User) -> None:
        monkeypatch.setattr(allowances, "hold", hold)
        assert steering.remove(ada, first).outcome == Command.Outcome.DONE
        hold(user)

    monkeypatch.setattr(allowances, "hold", after_a_removal)
    assert refused(nodes[1], first) == "called_off"


def test_what_began_again_a_moment_before_its_removal_is_not_called_removed(nodes, first, ada, monkeypatch) -> None:
    take(nodes[0], first, "m1")
    ends(first, removed_at=timezone.now())
    first.refresh_from_db()
    is_awaited = runs.is_awaited

    def and_begins(run: Container) -> bool:
        awaited = is_awaited(run)
        monkeypatch.setattr(runs, "is_awaited", is_awaited)
        take(nodes[1], first, "m2")
        return awaited

    monkeypatch.setattr(runs, "is_awaited", and_begins)
    with pytest.raises(Problem, match="has begun again just now"):
        steering.remove(ada, first)
    assert Container.objects.live().filter(mount="m2").exists()
    assert not runs.is_over(first)


def test_one_that_could_not_begin_again_is_not_tried_for_ever(nodes, first) -> None:
    take(nodes[0], first, "m1")
    ends(first)
    ends(take(nodes[1], first, "m2"), started_at=None, removed_at=timezone.now())
    first.refresh_from_db()
    assert runs.is_over(first)


def test_after_its_time_limit_none_begins(nodes, first) -> None:
    take(nodes[0], first, "m1")
    ends(first, started_at=timezone.now() - timedelta(seconds=101))
    first.refresh_from_db()
    assert runs.is_over(first)
    assert refused(nodes[0], first) == "called_off"


def test_no_run_begins_for_an_account_that_is_disabled(nodes, first, ada) -> None:
    take(nodes[0], first, "m1")
    ends(first)
    User.objects.filter(pk=ada.pk).update(is_active=False)
    assert refused(nodes[0], first) == "unknown_user"


def test_what_is_not_to_be_begun_again_is_not(nodes, first) -> None:
    goes(first, restart="")
    take(nodes[0], first, "m1")
    ends(first)
    assert refused(nodes[0], first) == "called_off"
