"""What a launch asks of its node, and what the appliance itself knows better, as a Swarm's placement constraints."""

from collections.abc import Iterator
from typing import Any

import docker.errors
import pytest

from tests.support.appliance import Appliance, until
from tests.support.swarm_lab import Lab, Member, why_no_lab
from tests.swarm import test_launches
from tests.swarm.appliance import in_a_swarm, knows_the_plugin
from tests.swarm.test_launches import FOREVER, launch, refusal, services, shown, until_it_is

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]
appliance, swarm = test_launches.appliance, test_launches.swarm


def label(swarm: Lab, member: Member, **labels: str) -> None:
    """As `docker node update --label-add` does it."""

    def updated() -> bool:
        found = swarm.members[0].api.inspect_node(member.id)
        spec = {"Role": found["Spec"]["Role"], "Availability": found["Spec"]["Availability"], "Labels": labels}
        try:
            swarm.members[0].api.update_node(found["ID"], found["Version"]["Index"], spec)
        except docker.errors.APIError as error:
            if "update out of sequence" not in str(error):  # the Swarm has changed it since we looked
                raise
            return False
        return True

    until(updated)


def asked_of(swarm: Lab, id_: str) -> list[str]:
    """The constraints of its service."""
    spec: dict[str, Any] = swarm.members[0].api.inspect_service(f"gpushare-{id_}")["Spec"]
    return list(spec["TaskTemplate"]["Placement"].get("Constraints") or ())


@pytest.fixture(scope="module")
def of_one() -> Iterator[tuple[Appliance, Lab]]:
    """The second node is larger, and has no scheduler: what comes there waits for its plugin."""
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with in_a_swarm({"gpu0_mib": 1000}, {"gpu0_mib": 4000}, GPUSHARE_PLACEMENT="soonest") as (appliance, swarm):
        until(lambda: knows_the_plugin(swarm))
        label(swarm, swarm.members[0], disk="ssd")
        label(swarm, swarm.members[1], disk="tape")
        yield appliance, swarm


def test_a_swarm_honours_constraints_by_the_labels_that_its_nodes_have(appliance: Appliance, swarm: Lab) -> None:
    fast = launch(appliance, "true", constraints=["node.labels.disk==SSD", "node!=node2"])
    assert until_it_is(appliance, fast, "exited")["constraints"] == ["node.labels.disk==SSD", "node!=node2"]
    slow = launch(appliance, "true", constraints=["node.labels.disk==tape"])
    reason = until(lambda: shown(appliance, slow)["queue_reason"])
    assert "scheduling constraints not satisfied on 1 node" in reason
    assert "missing plugin on 1 node" in reason
    named = launch(appliance, "true", constraints=["node==node2"])
    assert asked_of(swarm, named)[-1] == "node.hostname==node2"
    assert "missing plugin on 1 node" in until(lambda: shown(appliance, named)["queue_reason"])


def test_what_no_node_of_the_swarm_is_is_refused(appliance: Appliance, swarm: Lab) -> None:
    error = refusal(appliance, constraints=["node.labels.disk==ssd", "node==node2"])
    assert (error["code"], error["field"]) == ("no_such_node", "constraints")
    assert "node.labels.disk==ssd, node==node2" in error["message"]
    too_large = refusal(appliance, mib=3000, constraints=["node!=node2"])
    assert too_large["code"] == "over_capacity"
    assert services(swarm) == []


def test_what_the_appliance_knows_is_a_constraint_only_where_there_is_room_at_once(
    appliance: Appliance, swarm: Lab
) -> None:
    first = launch(appliance, *FOREVER, mib=700)
    assert asked_of(swarm, first) == ["node.hostname==node1"]  # the other one has room, and nothing is known of it
    until_it_is(appliance, first, "running")
    second = launch(appliance, *FOREVER, mib=700)
    assert asked_of(swarm, second) == []  # one that has no room is not waited for
