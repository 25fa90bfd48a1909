"""What a Swarm has brought to a host finds its record there: once, on the reserved cards, while it is wanted."""

import uuid
from threading import Thread
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.utils import timezone

from tests.support.machine import GIB, make_gpu, make_node
from web.errors import Problem
from web.models import Claim, Container, Gpu, Node, Volume
from web.people import allowances
from web.services import mounting, steering
from web.services.placement import accept_placement, placement_ticket
from web.services.placement.placement_ticket import PlacementTicket

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    node = make_node(name="one")
    make_gpu(node, 0), make_gpu(node, 1)
    return node


def waiting(**fields: Any) -> Container:
    """One that was handed to a Swarm."""
    owner, _ = User.objects.get_or_create(username="ada")
    return Container.objects.create(
        **{"owner": owner, "name": "job", "image": "x", "engine": "swarm", "gpu_memory": GIB, "handed": "key", **fields}
    )


def take(
    node: Node, container: Container, *cards: int, mount: str = "m", quota: int = GIB, key: str = "key"
) -> Container:
    return accept_placement.accept(node.pk, "volume", mount, PlacementTicket(container.pk, quota, cards or (0,), key))


def refused(node: Node, container: Container, *cards: int, **more: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        take(node, container, *cards, **more)
    assert not Claim.objects.filter(container=container, gpu__node=node).exists()
    return caught.value


def test_the_node_that_mounts_it_has_it_from_then_on(node: Node) -> None:
    container = waiting(queue_reason="no suitable node")
    taken = take(node, container, 0, 1)
    assert (taken.pk, taken.node, taken.mount, taken.queue_reason) == (container.pk, node, "m", "")
    assert {(claim.gpu.index, claim.quota) for claim in taken.claims.all()} == {(0, GIB), (1, GIB)}
    assert not Container.objects.queued().exists()


def test_the_same_mount_again_is_the_same_and_another_one_is_refused(node: Node) -> None:
    container, other = waiting(), make_node(name="two")
    make_gpu(other, 7)
    Gpu.objects.filter(node=other).update(index=0)
    assert take(node, container) == take(node, container)
    for place in (node, other):
        with pytest.raises(Problem, match="started already"):
            take(place, container, mount="again")
    assert Claim.objects.count() == 1


def test_only_who_has_the_key_takes_it(node: Node) -> None:
    for key, container in {"other": waiting(), "": waiting(name="never-handed", handed="")}.items():
        assert refused(node, container, key=key).code == "called_off"
    assert take(node, Container.objects.get(name="job")).node_reason == "Placed by Swarm."


def test_what_was_called_off_or_has_ended_never_starts(node: Node) -> None:
    now = timezone.now()
    for fields in ({"kill_requested_at": now}, {"finished_at": now}):
        assert refused(node, waiting(name=str(uuid.uuid4()), **fields)).code == "called_off"
    with pytest.raises(Problem, match="was cancelled"):
        accept_placement.require_wanted(PlacementTicket(uuid.uuid4(), GIB, (0,), "key"))


def test_cards_that_the_host_has_not_or_not_so_large_are_refused(node: Node) -> None:
    container = waiting()
    assert refused(node, container, 2).code == "no_such_gpu"
    problem = refused(node, container, 0, quota=6 * GIB)
    assert problem.code == "over_capacity"
    assert "6 GiB on card 0, which can never give more than 5 GiB" in problem.message
    assert Container.objects.queued().get() == container


@pytest.mark.parametrize(
    "options",
    [
        {"container": "no-uuid", "gpu_memory": "1", "cards": "0", "key": "k"},
        {"container": str(uuid.UUID(int=1)), "gpu_memory": "1GiB", "cards": "0", "key": "k"},
        {"container": str(uuid.UUID(int=1)), "gpu_memory": "1", "cards": "0,0", "key": "k"},
        {"container": str(uuid.UUID(int=1)), "gpu_memory": "1", "cards": "", "key": "k"},
        {"container": str(uuid.UUID(int=1)), "gpu_memory": "1"},
        {"container": str(uuid.UUID(int=1)), "gpu_memory": "1", "cards": "0", "key": "k", "owner": "ada"},
        {"container": str(uuid.UUID(int=1)), "gpu_memory": "1", "cards": "0"},
    ],
)
def test_options_that_no_swarm_writes_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(Problem, match="for containers that a Swarm brings"):
        placement_ticket.parse(options)


def test_a_volume_is_made_for_a_launch_that_is_wanted_and_for_no_other(node: Node) -> None:
    options = PlacementTicket(waiting().pk, GIB, (0,), "key").options()
    mounting.make(node.pk, "one", options)
    mounting.make(node.pk, "one", options)
    with pytest.raises(Problem, match="was cancelled"):
        mounting.make(node.pk, "two", PlacementTicket(uuid.uuid4(), GIB, (0,), "key").options())
    assert Volume.objects.get().name == "one"


@pytest.mark.django_db(transaction=True)
def test_one_that_is_changed_while_a_node_takes_it_is_taken_and_changed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each held a lock that the other was about to ask for: PostgreSQL ended one of them, and with it the launch."""
    container = waiting(gpu_memory=None, node=node)
    require, failed = allowances.require_promise, []

    def change() -> None:
        try:
            steering.change(container.owner, container, compute_weight=200)
        except Exception as error:
            failed.append(error)
        finally:
            connections.close_all()

    changing = Thread(target=change)

    def require_late(*about: Any) -> None:
        changing.start()
        changing.join(1)  # it does not end: it waits for what this transaction holds
        require(*about)

    monkeypatch.setattr(allowances, "require_promise", require_late)
    assert take(node, container).node == node
    changing.join(60)
    assert not failed
