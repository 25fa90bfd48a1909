"""A node says what cannot be, which its database role lets it: everybody else sees all the others."""

import pytest
from django.test import Client
from django.utils import timezone

from scheduler.figures import Figures
from tests.support.machine import make_gpu, make_node
from tests.support.people import make_user
from web.models import Gpu, Node, Scope
from web.models.hosts import SUPPOSED
from web.people import tokens
from web.people.roles import Role
from web.services import attention

pytestmark = pytest.mark.django_db
NOTHING = {"turns": 0, "events_written": 0, "events_behind": 0, "rows_behind": 0, "samples_behind": 0}
HONEST = Figures().as_dict(**NOTHING)


@pytest.mark.parametrize(
    "odd",
    [
        {"events": {}},
        {name: figure for name, figure in HONEST.items() if name != "waits"},
        HONEST | {"waits": {"bounds": [1, 2], "counts": [], "sum": 0}},
    ],
    ids=["nearly nothing", "no waits", "counts of no bounds"],
)
def test_figures_that_do_not_fit_each_other_hide_no_others(odd):
    Node.objects.filter(pk=make_node(name="odd").pk).update(figures=odd)
    Node.objects.filter(pk=make_node(name="honest").pk).update(figures=HONEST)
    _, key = tokens.make(make_user("prometheus", Role.VIEWER), scope=Scope.READ)
    answer = Client().get("/metrics", headers={"authorization": f"Token {key}"})
    assert answer.status_code == 200
    assert 'gpushare_wait_seconds_count{node="honest"} 0' in answer.text
    assert 'gpushare_scheduler_up{node="odd"}' in answer.text
    assert 'gpushare_wait_seconds_count{node="odd"}' not in answer.text


@pytest.mark.parametrize("pair", [[1, 0], [0, 1]])
def test_memory_that_moved_in_no_time_or_none_of_it_says_nothing_of_the_speed(pair):
    node = make_node(name="odd")
    node.moved = {"out": pair, "first": pair, "back": pair}
    assert node.rates(first=True) == node.rates(first=False) == {"out": SUPPOSED, "back": SUPPOSED}


def test_a_card_whose_name_is_a_command_is_a_word_of_the_command_that_helps():
    card = make_gpu(make_node(name="odd"), ecc_errors=5, temperature=99, hot_since=timezone.now())
    Gpu.objects.filter(pk=card.pk).update(uuid="x; reboot")
    commands = {item.kind: item.command for item in attention.items() if item.gpu}
    assert commands[attention.Kind.ECC] == "nvidia-smi -q -d ECC -i 'x; reboot'"
    assert commands[attention.Kind.HOT] == "nvidia-smi -q -d TEMPERATURE -i 'x; reboot'"
