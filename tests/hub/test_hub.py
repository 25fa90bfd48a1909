"""A real JupyterHub whose notebooks are containers of a real appliance, with real single-user servers."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.hub.a_hub import BUSY, SMALL, Hub
from tests.support.appliance import WORKLOAD, Appliance, http, until


def messages(events: list[dict[str, Any]]) -> str:
    return "\n".join(str(event.get("message")) for event in events)


def notebooks(appliance: Appliance, **filters: str) -> list[dict[str, Any]]:
    found = appliance.containers(**(filters or {"live": "true"}))
    return [each for each in found if each["name"].startswith("jupyter-")]


@pytest.fixture(autouse=True)
def _nobody_is_left(hub: Hub, appliance: Appliance) -> Iterator[None]:
    """A test that failed is not to make the next one fail."""
    yield
    if hub.server("ada") is not None:
        stopped(hub, appliance)


def running(hub: Hub, user: str = "ada", **options: str) -> list[dict[str, Any]]:
    """Starts a notebook and waits until the hub says that it is there. Returns what its page showed."""
    hub.begin(user, **options)
    events = list(hub.progress(user))
    assert events[-1].get("ready"), messages(events) + hub.log()[-3000:]
    return events


def stopped(hub: Hub, appliance: Appliance) -> None:
    """Ada's, and nothing of it is left on the appliance, nor an ended one in its list."""
    assert hub.api("DELETE", "users/ada/server").status_code in (202, 204)
    until(lambda: not notebooks(appliance, owner="ada"))
    until(lambda: hub.server("ada") is None)


def test_a_notebook_is_a_container_of_its_person_with_the_chosen_quota_and_stopping_takes_it_away(hub, appliance):
    running(hub, profile=SMALL, gpu_memory="128MiB")
    (container,) = notebooks(appliance)
    assert (container["owner"], container["name"]) == ("ada", "jupyter-ada")
    assert container["gpus"][0]["quota"] == 128 << 20
    assert hub.notebook("ada").json()["kernels"] == 0
    audit = appliance.api("GET", "audit/?action=launch")["results"][0]
    assert (audit["actor"], audit["detail"]["owner"]) == ("jupyterhub", "ada")
    stopped(hub, appliance)


def test_who_starts_sees_the_place_in_the_queue_and_why_and_gets_the_notebook_when_memory_is_there(hub, appliance):
    hog = appliance.launch(WORKLOAD, "--bytes", "800MiB", "--hold", "600", gpu_memory="896MiB", give_way=False)
    until(lambda: appliance.containers()[0]["gpus"][0]["used"] > 700 << 20)
    hub.begin("ada", profile=BUSY)
    shown, events = "", []
    for event in hub.progress("ada"):
        events.append(event)
        if "in the queue" in event["message"] and not shown:
            shown = event["message"]
            appliance.api("POST", f"containers/{hog['id']}/kill/", {})
    assert events[-1].get("ready"), messages(events)
    assert "Suspended, first in the queue: " in shown
    assert "MiB" in shown  # the appliance's own reason, with its figures
    stopped(hub, appliance)


def test_a_hub_that_was_killed_finds_its_notebooks_again(hub, appliance):
    running(hub, profile=SMALL)
    (before,) = notebooks(appliance)
    hub.kill()
    hub.start()
    until(lambda: hub.server("ada") is not None and hub.server("ada")["ready"])
    until(lambda: hub.notebook("ada").status_code == 200)
    (after,) = notebooks(appliance)
    assert (after["id"], after["state"]) == (before["id"], "running")
    stopped(hub, appliance)


def test_the_hub_notices_that_a_notebook_was_ended_on_the_appliance(hub, appliance):
    running(hub, profile=SMALL)
    id_ = notebooks(appliance)[0]["id"]
    appliance.api("POST", f"containers/{id_}/kill/", {})
    until(lambda: hub.server("ada") is None)
    (ended,) = notebooks(appliance, owner="ada")  # it stays with its output, for whoever wants to know why
    assert ended["reason"] == "Killed by admin."
    http.delete(f"{appliance.url}/api/v1/containers/{id_}/", headers={"Authorization": f"Token {appliance.token}"})


def test_a_notebook_outlives_an_appliance_that_is_away_and_a_start_says_that_it_is(hub, appliance):
    running(hub, profile=SMALL)
    appliance.process.terminate()
    appliance._reap()
    try:
        hub.begin("carol", profile=SMALL)
        failed = list(hub.progress("carol"))[-1]
        assert failed["failed"]
        assert "does not answer. Try again in a minute." in failed["message"]
        until(lambda: "does not answer" in hub.log().partition("carol")[2])
        assert hub.server("ada") is not None
    finally:
        appliance.start()
    until(lambda: hub.notebook("ada").status_code == 200)
    stopped(hub, appliance)


def test_the_usual_culler_ends_who_is_idle(hub, appliance):
    running(hub, profile=SMALL)
    culler = hub.cull(idle=4)
    try:
        until(lambda: hub.server("ada") is None)
        until(lambda: not notebooks(appliance))
    finally:
        culler.terminate()
        culler.wait()
