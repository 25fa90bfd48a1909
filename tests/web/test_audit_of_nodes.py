"""What a node seals with its own key is found whole as far as it is that node's, and its key opens nothing else."""

import pytest
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import make_container, make_gpu, make_node
from web import audit
from web.audit import seals
from web.models import Container, Seal
from web.services import warning

pytestmark = pytest.mark.django_db


@pytest.fixture
def on_gpu2(ada) -> Container:
    """A container of the node gpu2."""
    node = make_node(name="gpu2")
    return make_container(ada, "there", make_gpu(node), node=node)


def seal_as(settings, node: str) -> None:
    """From now on the program here is that of a node that joined."""
    key = seals.key_of(node).hex()
    settings.GPUSHARE_NODE, settings.GPUSHARE_AUDIT_KEY = node, key


def faults(settings) -> list[str]:
    """As found with the appliance's own key."""
    settings.GPUSHARE_AUDIT_KEY = ""
    return audit.verify()[1]


def test_events_of_a_node_hold_by_its_key_beside_the_appliances_own(settings, on_gpu2: Container) -> None:
    audit.record("ada", "launch", on_gpu2.pk)
    seal_as(settings, "gpu2")
    append(on_gpu2, timezone.now(), EventKind.STARTED)
    assert list(Seal.objects.values_list("node", flat=True)) == ["", "gpu2"]
    assert faults(settings) == []


def test_events_of_another_nodes_containers_do_not_hold(settings, on_gpu2: Container) -> None:
    seal_as(settings, "gpu3")
    append(on_gpu2, timezone.now(), EventKind.ENDED)
    assert [fault[:24] for fault in faults(settings)] == ["Seal 1 by the node gpu3 "]


def test_deed_of_a_person_does_not_hold_by_a_nodes_key(settings, on_gpu2: Container) -> None:
    seal_as(settings, "gpu2")
    audit.record("ada", "allowance-set", "eve")
    assert len(faults(settings)) == 1


def test_seal_of_a_node_does_not_hold_in_another_name(settings, on_gpu2: Container) -> None:
    seal_as(settings, "gpu2")
    append(on_gpu2, timezone.now(), EventKind.STARTED)
    for name in ("", "gpu3"):
        Seal.objects.update(node=name)
        assert len(faults(settings)) == 1


def test_node_warns_no_owner(settings, ada, on_gpu2: Container) -> None:
    seal_as(settings, "gpu2")
    audit.record(seals.DOCKER, warning.ACTION, on_gpu2.pk)
    assert warning.warned(ada) == []
    settings.GPUSHARE_AUDIT_KEY = ""
    warning.tell_owner("gpushare", on_gpu2)
    assert warning.warned(ada) == [on_gpu2]
