"""What people see of one that gave way, and of a host on which no memory can be moved."""

import re

import pytest
from django.utils import timezone

from tests.support.machine import GIB, make_container
from tests.support.people import signed_in
from web.models import Container, Node

pytestmark = pytest.mark.django_db


@pytest.fixture
def held(ada, gpu) -> Container:
    return make_container(ada, "notebook", gpu, started_at=timezone.now())


def page_of(container: Container) -> str:
    return re.sub(r"\s+", " ", signed_in(container.owner).get(f"/containers/{container.pk}/").content.decode())


def test_its_page_and_rest_say_why_it_is_out_and_when_it_comes_back(client, held):
    Container.objects.update(
        swap="out", swapped_at=timezone.now(), swapped=4 * GIB, gave_way="idle", gave_way_to="training"
    )
    held.refresh_from_db()
    text = "It was idle, and gave way to “training”. Its programs continue; its GPU memory is in host memory"
    assert f"{text} and comes back by itself when it computes again, as soon as 4 GiB is free." in page_of(held)
    answer = client.get(f"/api/v1/containers/{held.pk}/").json()
    assert (answer["state"], answer["gave_way"], answer["gave_way_to"]) == ("swapped", "idle", "training")


def test_the_dialog_reckons_with_what_this_host_has_measured(held):
    Node.objects.update(moved={"first": [2 * GIB, 4.0], "out": [8 * GIB, 4.0], "back": [16 * GIB, 4.0]})
    Container.objects.update(node=Node.objects.get())
    assert f'data-out="{GIB // 2}" data-back="{4 * GIB}"' in page_of(held)


def test_where_no_memory_can_be_moved_the_button_says_why(held):
    Node.objects.update(cannot_swap="the driver is for CUDA 12.4; 12.8 brought it.")
    Container.objects.update(node=Node.objects.get())
    assert 'disabled title="the driver is for CUDA 12.4; 12.8 brought it."' in page_of(held)
