"""A launch that goes to a Swarm: a real engine, a real Swarm of one node, its scheduler with the volume plugin.

Swarm places, and the node's scheduler holds the quota, tells the end, and is who pauses, kills and shows the output.
"""

from collections.abc import Iterator
from typing import Any

import docker
import httpx
import pytest

from tests.support.appliance import Appliance, until
from tests.support.eventually import PATIENCE
from tests.support.swarm_lab import Lab, why_no_lab
from tests.swarm.appliance import IMAGE, in_a_swarm, knows_the_plugin

pytestmark = pytest.mark.docker
MIB = 1 << 20
SHELL = ("sh", "-c")
FOREVER = (*SHELL, "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done")


@pytest.fixture
def appliance(of_one: tuple[Appliance, Lab]) -> Iterator[Appliance]:
    """With nothing left behind, and nothing begun again."""
    appliance, swarm = of_one
    yield appliance
    until(lambda: not (appliance.end_all() or services(swarm)))


@pytest.fixture
def swarm(of_one: tuple[Appliance, Lab]) -> Lab:
    return of_one[1]


def services(swarm: Lab) -> list[dict[str, Any]]:
    return list(swarm.members[0].api.services())


def launch(appliance: Appliance, *command: str, mib: int = 300, **fields: Any) -> str:
    """The id of a container of this quota."""
    made = appliance.launch(*command, **{"image": IMAGE, "gpu_memory": mib * MIB, **fields})
    return str(made["id"])


def shown(appliance: Appliance, id_: str) -> dict[str, Any]:
    found: dict[str, Any] = appliance.api("GET", f"containers/{id_}/")
    return found


def until_it_is(appliance: Appliance, id_: str, state: str) -> dict[str, Any]:
    return until(lambda: (found := shown(appliance, id_))["state"] == state and found)


def refusal(appliance: Appliance, **fields: Any) -> dict[str, Any]:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        launch(appliance, "true", **fields)
    error: dict[str, Any] = caught.value.response.json()["error"]
    return error


def test_a_launch_runs_where_swarm_puts_it_with_its_quota_and_is_reported_to_its_end(
    appliance: Appliance, swarm: Lab
) -> None:
    id_ = launch(appliance, "workload", "--bytes", "200MiB", mib=300, name="job")
    ended = until_it_is(appliance, id_, "exited")
    (claim,) = ended["gpus"]
    assert (ended["exit_code"], ended["engine"], claim["quota"]) == (0, "docker", 300 * MIB)
    assert claim["peak"] >= 200 * MIB
    until(lambda: not services(swarm))


def test_a_program_gets_no_more_than_its_quota(appliance: Appliance) -> None:
    id_ = launch(appliance, "workload", "--bytes", "400MiB", mib=300)
    assert until_it_is(appliance, id_, "failed")["exit_code"] == 2


def test_a_program_has_its_environment_as_it_was_said(appliance: Appliance) -> None:
    """A Swarm reads {{…}} there as words of its own, and refuses what it cannot read."""
    said = '{{.Node.Hostname}} {{{ }} {{"{{"}} {{ open'
    id_ = launch(appliance, *SHELL, 'echo "$SAID"', env={"SAID": said})
    until_it_is(appliance, id_, "exited")
    headers = {"Authorization": f"Token {appliance.token}"}
    assert (
        httpx.get(f"{appliance.url}/api/v1/containers/{id_}/logs/", headers=headers, timeout=PATIENCE).text
        == f"{said}\n"
    )


def test_a_program_has_as_much_shared_memory_as_on_one_host(appliance: Appliance) -> None:
    id_ = launch(appliance, *SHELL, "grep ' /dev/shm ' /proc/mounts | grep size=1048576k")
    until_it_is(appliance, id_, "exited")
    assert refusal(appliance, memory=64 * MIB, shm_size=65 * MIB)["code"] == "shm_too_large"


def test_a_program_has_the_hosts_limits_and_cannot_ask_for_more(appliance: Appliance, swarm: Lab) -> None:
    id_ = launch(appliance, *FOREVER)
    (service,) = services(swarm)
    limits, host = service["Spec"]["TaskTemplate"]["Resources"]["Limits"], swarm.members[0].api.info()
    assert limits["MemoryBytes"] == int(host["MemTotal"] * 0.9)
    assert limits["NanoCPUs"] == host["NCPU"] * 10**9
    until_it_is(appliance, id_, "running")
    error = refusal(appliance, memory="100TiB")
    assert (error["code"], error["field"]) == ("memory_too_large", "memory")


def test_a_service_of_others_that_has_our_label_is_in_nobodys_way(appliance: Appliance, swarm: Lab) -> None:
    """A label is a word that anybody writes; its removal is theirs, too."""
    api = swarm.members[0].api
    task = docker.types.TaskTemplate(docker.types.ContainerSpec(IMAGE, command=["sleep", "600"]))
    theirs = api.create_service(task, name="gpushare-theirs", labels={"com.gpushare.launch": "theirs"})["ID"]
    try:
        id_ = launch(appliance, "true", name="beside")
        assert until_it_is(appliance, id_, "exited")["exit_code"] == 0
        until(lambda: [each["Spec"]["Name"] for each in services(swarm)] == ["gpushare-theirs"])
    finally:
        api.remove_service(theirs)


def test_what_fits_nowhere_waits_with_swarms_own_reason_and_starts_when_room_comes(
    appliance: Appliance, swarm: Lab
) -> None:
    first = launch(appliance, *FOREVER, mib=700)
    until_it_is(appliance, first, "running")
    second = launch(appliance, "true", mib=700, name="waits")
    waiting = until(lambda: (found := shown(appliance, second))["queue_reason"] and found)
    assert waiting["queue_reason"] == "no suitable node (insufficient resources on 1 node)"
    assert waiting["state"] == "created"
    (queued,) = appliance.api("GET", "queue/")["results"]
    assert (queued["name"], queued["waits_for"], queued["reason"]) == ("waits", "node", waiting["queue_reason"])
    appliance.api("POST", f"containers/{first}/kill/", {})
    assert until_it_is(appliance, second, "exited")["queue_reason"] == ""
    assert appliance.api("GET", "queue/")["results"] == []


def test_one_that_waits_is_called_off_and_never_starts(appliance: Appliance, swarm: Lab) -> None:
    first = launch(appliance, *FOREVER, mib=700)
    until_it_is(appliance, first, "running")
    second = launch(appliance, *FOREVER, mib=700)
    appliance.api("POST", f"containers/{second}/kill/", {"note": "no longer needed"})
    killed = shown(appliance, second)
    assert (killed["state"], killed["reason"]) == ("killed", "Killed by admin: no longer needed")
    until(lambda: [each["Spec"]["Name"] for each in services(swarm)] == [f"gpushare-{first}"])
    assert "pending" not in [task["Status"]["State"] for task in swarm.members[0].api.tasks()]


def test_pause_output_and_end_go_to_the_node_that_has_it(appliance: Appliance, swarm: Lab) -> None:
    id_ = launch(appliance, *FOREVER)
    until_it_is(appliance, id_, "running")
    appliance.api("POST", f"containers/{id_}/pause/", {})
    assert shown(appliance, id_)["state"] == "paused"
    appliance.api("POST", f"containers/{id_}/resume/", {})
    headers = {"Authorization": f"Token {appliance.token}"}
    address = f"{appliance.url}/api/v1/containers/{id_}/logs/"
    until(lambda: "ready" in httpx.get(address, headers=headers, timeout=PATIENCE).text)
    appliance.api("POST", f"containers/{id_}/kill/", {"grace": 10})
    ended = until_it_is(appliance, id_, "killed")
    assert ended["exit_code"] == 3
    appliance.api("DELETE", f"containers/{id_}/")
    api = swarm.members[0].api
    until(lambda: not api.containers(all=True, filters={"label": f"com.gpushare.launch={id_}"}))
    assert f"gpushare-{id_}" not in [volume["Name"] for volume in api.volumes()["Volumes"]]


def test_a_program_that_is_not_there_is_reported_with_swarms_words(appliance: Appliance) -> None:
    id_ = launch(appliance, "/no/such")
    until_it_is(appliance, id_, "failed")
    until(lambda: "/no/such" in shown(appliance, id_)["reason"])


def test_a_scheduler_that_dies_over_it_finds_what_waits_and_what_runs(appliance: Appliance, swarm: Lab) -> None:
    runs = launch(appliance, *FOREVER, mib=700)
    until_it_is(appliance, runs, "running")
    waits = launch(appliance, "true", mib=700)
    until(lambda: shown(appliance, waits)["queue_reason"])
    appliance.crash()
    appliance.start()
    assert until_it_is(appliance, runs, "running")["gpus"][0]["quota"] == 700 * MIB
    appliance.api("POST", f"containers/{runs}/kill/", {})
    assert until_it_is(appliance, waits, "exited")["exit_code"] == 0


def test_a_manager_whose_docker_dies_goes_on_with_what_waits(appliance: Appliance, swarm: Lab) -> None:
    runs = launch(appliance, *FOREVER, mib=700)
    until_it_is(appliance, runs, "running")
    waits = launch(appliance, "true", mib=700)
    until(lambda: shown(appliance, waits)["queue_reason"])
    swarm.members[0].kill()
    swarm.members[0].start()
    until(lambda: shown(appliance, runs)["finished_at"])  # it went down with its engine
    assert until_it_is(appliance, waits, "exited")["exit_code"] == 0


def test_many_launches_at_once_come_one_after_the_other_and_never_pass_the_card(appliance: Appliance) -> None:
    sizes = (300, 450, 700, 200) * 3
    ids = [launch(appliance, "sleep", "0.5", mib=mib) for mib in sizes]
    until(lambda: not appliance.containers(), 120)
    lives = [shown(appliance, id_) for id_ in ids]
    assert {life["exit_code"] for life in lives} == {0}
    together = [
        sum(other["gpus"][0]["quota"] for other in lives if other["started_at"] <= at < other["finished_at"])
        for at in [life["started_at"] for life in lives]
    ]
    assert 700 * MIB <= max(together) <= 1000 * MIB


def test_a_service_that_somebody_else_removes_ends_its_launch(appliance: Appliance, swarm: Lab) -> None:
    first = launch(appliance, *FOREVER, mib=700)
    until_it_is(appliance, first, "running")
    second = launch(appliance, "true", mib=700)
    until(lambda: shown(appliance, second)["queue_reason"])
    swarm.members[0].api.remove_service(f"gpushare-{second}")
    ended = until(lambda: (found := shown(appliance, second))["finished_at"] and found)
    assert "outside of this appliance" in ended["reason"]


@pytest.mark.long  # a Swarm of its own
def test_a_node_without_a_scheduler_of_ours_is_passed_by_and_one_that_is_away_is_named() -> None:
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with in_a_swarm({"gpu0_mib": 1000}, {"gpu0_mib": 4000}) as (appliance, swarm):
        until(lambda: knows_the_plugin(swarm))
        until_it_is(appliance, first := launch(appliance, *FOREVER, mib=700), "running")
        second = launch(appliance, "true", mib=700)
        reason = until(lambda: shown(appliance, second)["queue_reason"])
        assert "missing plugin on 1 node" in reason
        assert "insufficient resources on 1 node" in reason
        appliance.api("POST", f"containers/{first}/kill/", {})
        until_it_is(appliance, second, "exited")
        assert not swarm.members[1].api.containers(all=True)
        (other,) = [node for node in swarm.nodes(swarm.members[0]) if node["Description"]["Hostname"] == "node2"]
        paused = {**other["Spec"], "Availability": "pause"}
        swarm.members[0].api.update_node(other["ID"], other["Version"]["Index"], paused)
        error = refusal(appliance, constraints=["node==node2"])
        assert (error["code"], error["message"].partition(",")[0]) == ("node_away", 'Only "node2" is as asked')
