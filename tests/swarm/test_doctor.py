"""`gpushare doctor` on a host whose Docker is in a Swarm, a real one: which lines are missing, and how they go."""

import json
from pathlib import Path

import pytest
from django.conf import settings

from appliance.doctor import cards
from appliance.doctor.finding import Finding, State
from appliance.doctor.swarm import swarm as check
from tests.support.dockerd import Dockerd, dockerd
from tests.support.swarm_lab import Lab, lab, why_no_lab
from tests.swarm.conftest import FIVE
from web.models import Gpu, Node

pytestmark = [pytest.mark.docker, pytest.mark.django_db]
__all__ = ["dockerd"]
MIB = 1 << 20
NAME = "node1"  # as the Swarm knows the first of its hosts


@pytest.fixture(autouse=True)
def asked_anew(settings):
    settings.GPUSHARE_ENGINE, settings.GPUSHARE_NODE = "docker", NAME
    cards.ask_docker.cache_clear()
    yield
    cards.ask_docker.cache_clear()


def has_card(index: int, most: int, *, simulated: bool = True) -> None:
    node, _ = Node.objects.get_or_create(name=settings.GPUSHARE_NODE)
    sizes = {"total": most, "capacity": most, "most": most}
    Gpu.objects.create(node=node, uuid=f"GPU-{index}", index=index, name="H200", simulated=simulated, **sizes)


def one() -> Finding:
    (found,) = list(check())
    return found


def test_a_swarm_that_knows_the_cards(swarm: Lab, settings):
    settings.GPUSHARE_DOCKER_HOST = swarm.members[0].address
    assert "Start the scheduler once" in one().do
    has_card(0, FIVE * MIB)
    assert (one().state, one().found) == (State.FINE, "The Swarm knows the cards of this host: gpu0_mib=5120.")


def test_a_host_that_the_swarm_knows_by_another_name_and_a_docker_that_passes_no_card_on(swarm: Lab, settings):
    settings.GPUSHARE_DOCKER_HOST, settings.GPUSHARE_NODE = swarm.members[0].address, "gpu1"
    has_card(0, FIVE * MIB, simulated=False)
    fine, named, passed = check()
    assert [each.state for each in (fine, named, passed)] == [State.FINE, State.WRONG, State.WRONG]
    assert named.found == "This host is node1 in the Swarm, and gpu1 here."
    assert "--set-as-default" in passed.do


def test_a_docker_that_is_in_no_swarm(dockerd: Dockerd, settings):
    settings.GPUSHARE_DOCKER_HOST = dockerd.address
    assert one().state is State.FINE
    cards.ask_docker.cache_clear()
    settings.GPUSHARE_ENGINE = "swarm"
    assert (one().state, "docker swarm init" in one().found) == (State.WRONG, True)


def test_a_card_that_the_swarm_does_not_know_and_one_that_it_thinks_larger(swarm: Lab, settings):
    settings.GPUSHARE_DOCKER_HOST = swarm.members[0].address
    has_card(0, (FIVE - 100) * MIB)
    assert one().state is State.NOTE
    assert "declared with 5 GiB and gives 4.9 GiB" in one().found
    has_card(1, 7 * MIB + 1)
    assert "does not know of card 1" in one().found
    line = one().do.split("needs ")[1].split(";")[0]
    assert json.loads(line) == {"node-generic-resources": ["gpu0_mib=5020", "gpu1_mib=7"]}


def test_the_lines_that_it_writes_are_lines_that_docker_takes(tmp_path: Path, settings):
    """And a value with a unit is none: Docker takes it for a name, and says nothing."""
    if why_not := why_no_lab():
        pytest.skip(why_not)
    has_card(0, 640 * MIB)
    with lab([{}], image=False) as made:
        settings.GPUSHARE_DOCKER_HOST = (member := made.members[0]).address
        lines = one().do.split("needs ")[1].split(";")[0]
        states = {lines: State.FINE, lines.replace("=640", "=640MiB"): State.WRONG}
        for text, state in states.items():
            member.stop()
            member.configure(text)
            member.start()
            cards.ask_docker.cache_clear()
            assert one().state is state
        assert "not a plain number" in one().found
