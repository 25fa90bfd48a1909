"""A launch that a Swarm begins again: a real engine, a real Swarm of one node, its scheduler with the volume plugin."""

from typing import Any

import pytest

from tests.support.appliance import Appliance, until
from tests.support.swarm_lab import Lab
from tests.swarm import test_launches
from tests.swarm.test_launches import FOREVER, MIB, SHELL, launch, refusal, services, shown, until_it_is

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]
appliance, swarm = test_launches.appliance, test_launches.swarm


def runs_of(appliance: Appliance, id_: str) -> list[dict[str, Any]]:
    """The first one first."""
    found = appliance.api("GET", "containers/?ordering=created_at&page_size=1000")["results"]
    return [each for each in found if id_ in (each["id"], each["run_of"])]


def begun(appliance: Appliance, name: str) -> int:
    """How many runs of it a node was given."""
    entries = appliance.api("GET", "audit/?page_size=1000")["results"]
    return sum(each["action"] == "taken" and each["detail"]["name"] == name for each in entries)


def run(appliance: Appliance, id_: str, number: int, state: str) -> dict[str, Any]:
    """That run of it, once it is so."""

    def found() -> dict[str, Any] | None:
        all_ = runs_of(appliance, id_)
        return all_[number - 1] if len(all_) >= number and all_[number - 1]["state"] == state else None

    return until(found, 60)


def end(appliance: Appliance, swarm: Lab, run: dict[str, Any]) -> None:
    """Its program is asked to end well, once it listens."""
    (member,) = swarm.members
    until(lambda: b"ready" in member.api.logs(shown(appliance, run["id"])["engine_id"]))
    member.api.kill(shown(appliance, run["id"])["engine_id"], "TERM")


def test_each_run_has_its_quota_and_a_kill_ends_them_all(appliance: Appliance, swarm: Lab) -> None:
    too_much, ends = "workload --bytes 400MiB", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    id_ = launch(appliance, *SHELL, f"{too_much}; {ends}", name="again", restart="always")
    end(appliance, swarm, run(appliance, id_, 1, "running"))
    first = run(appliance, id_, 1, "exited")
    second = run(appliance, id_, 2, "running")
    assert (second["run_of"], second["name"], second["restart"]) == (id_, "again", "always")
    assert [each["gpus"][0]["quota"] for each in (first, second)] == [300 * MIB] * 2
    end(appliance, swarm, second)
    run(appliance, id_, 2, "exited")
    third = run(appliance, id_, 3, "running")
    appliance.api("POST", f"containers/{third['id']}/kill/", {})
    assert shown(appliance, third["id"])["state"] == "killed"
    until(lambda: not services(swarm))
    assert begun(appliance, "again") == 3
    assert [shown(appliance, each["id"])["gpus"][0]["peak"] <= 300 * MIB for each in (first, second, third)] == [
        True
    ] * 3


def test_on_failure_counts_and_leaves_what_ended_well_alone(appliance: Appliance, swarm: Lab) -> None:
    well = launch(appliance, "true", name="well", restart="on-failure")
    badly = launch(appliance, *SHELL, "exit 3", name="badly", restart="on-failure:1")
    assert run(appliance, well, 1, "exited")["exit_code"] == 0
    assert [run(appliance, badly, number, "failed")["exit_code"] for number in (1, 2)] == [3, 3]
    until(lambda: not services(swarm), 60)
    assert [begun(appliance, name) for name in ("well", "badly")] == [1, 2]


def test_removing_what_has_ended_and_a_time_limit_end_it_too(appliance: Appliance, swarm: Lab) -> None:
    removed = launch(appliance, "true", restart="always")
    run(appliance, removed, 1, "exited")
    appliance.api("DELETE", f"containers/{removed}/")
    until(lambda: not services(swarm), 60)
    limited = launch(appliance, *FOREVER, name="limited", restart="always", ttl_seconds=2)
    assert until_it_is(appliance, limited, "killed")["reason"] == "Its time limit of 2 s was reached."
    until(lambda: not services(swarm), 60)
    assert begun(appliance, "limited") == 1


def test_one_that_waits_for_room_is_called_off_like_a_job(appliance: Appliance, swarm: Lab) -> None:
    first = launch(appliance, *FOREVER, mib=700)
    until_it_is(appliance, first, "running")
    second = launch(appliance, *FOREVER, mib=700, restart="always")
    until(lambda: shown(appliance, second)["queue_reason"])
    appliance.api("POST", f"containers/{second}/kill/", {})
    assert shown(appliance, second)["state"] == "killed"
    until(lambda: [each["Spec"]["Name"] for each in services(swarm)] == [f"gpushare-{first}"])


def test_what_is_begun_again_is_not_removed_when_it_has_ended(appliance: Appliance) -> None:
    error = refusal(appliance, restart="always", remove_when_done=True)
    assert (error["field"], error["message"]) == (
        "restart", "A container that is restarted is not removed when it ends: choose one of the two.",
    )  # fmt: skip
