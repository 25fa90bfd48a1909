"""The log of an appliance over a whole run: who it was about, no secret of anybody, all of it in one form."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.appliance import Appliance, http, until

ENVIRONMENT, TYPED, HEADER = "hf-planted-in-environment", "planted-as-password", "gps_planted-as-token"
KEY, ARGUMENT = "planted-as-secret-key-0123456789-0123456789", "planted-in-the-address"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[Appliance, Path]]:
    """At the level that tells the most, as JSON."""
    running = Appliance(
        tmp_path / "home",
        GPUSHARE_LOG="DEBUG",
        GPUSHARE_LOG_FORMAT="json",
        GPUSHARE_NODE="gpu1",
        GPUSHARE_SECRET_KEY=KEY,
    )
    yield running, tmp_path / "home.log"
    if running.process.poll() is None:
        running.close()


def lines(log: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_no_secret_is_in_it_and_every_line_is_an_object(run: tuple[Appliance, Path]) -> None:
    appliance, log = run
    api = f"{appliance.url}/api/v1"
    signed_in = http.post(
        f"{api}/sign-in/", json={"username": "admin", "password": appliance.token, "name": "x"}
    ).json()
    secrets = [appliance.token, signed_in["key"], ENVIRONMENT, TYPED, HEADER, KEY, ARGUMENT]

    made = appliance.launch("sleep", "600", name="train", gpu_memory="64MiB", env={"HUB": ENVIRONMENT})
    with pytest.raises(httpx.HTTPStatusError):  # refused by what is in it
        appliance.launch("sleep", "600", gpu_memory="64MiB", env={"LD_PRELOAD": ENVIRONMENT})
    with pytest.raises(httpx.HTTPStatusError):  # and by the engine
        appliance.launch("no-such-program", gpu_memory="64MiB", env={"HUB": ENVIRONMENT}, working_dir="/no/such")
    http.post(f"{api}/sign-in/", json={"username": "admin", "password": TYPED, "name": "x"})
    http.get(f"{api}/containers/", headers={"Authorization": f"Token {HEADER}"})
    http.get(f"{appliance.url}/nothing?token={ARGUMENT}", headers={"Cookie": f"sessionid={HEADER}"})
    http.get(f"{appliance.url}/login/", headers={"Host": "elsewhere.example", "Authorization": f"Bearer {HEADER}"})
    http.post(f"{appliance.url}/login/", data={"username": "admin", "password": TYPED})
    appliance.api("POST", f"containers/{made['id']}/kill/", {})
    appliance.crash()  # and what is logged where nobody could say goodbye
    appliance.start()
    appliance.close()

    said = log.read_text()
    assert [secret for secret in secrets if secret in said] == []
    assert {each["node"] for each in lines(log)} == {"gpu1"}
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in lines(log))
    assert {"scheduler.worker", "django.request"} <= {each["logger"] for each in lines(log)}


def test_what_happens_to_a_container_is_logged_with_its_owner_and_is_no_warning(run: tuple[Appliance, Path]) -> None:
    appliance, log = run
    made = appliance.launch("sleep", "600", name="train", gpu_memory="64MiB")
    for action in ("pause", "resume", "kill"):
        appliance.api("POST", f"containers/{made['id']}/{action}/", {})

    def messages() -> list[str]:
        of_it = [each for each in lines(log) if each.get("container") == "train"]
        assert {(each["owner"], each["container_id"], each["level"]) for each in of_it} <= {
            ("admin", made["id"], "info")
        }
        return [each["message"] for each in of_it]

    until(lambda: len(messages()) >= 5)
    started, paused, resumed, killed, ended = messages()
    assert started == "container train has started, with a quota of 64 MiB"
    assert (paused, resumed) == ("container train is paused", "container train goes on")
    assert killed.startswith("container train is killed")
    assert ended.startswith("container train has ended: ")
    # That its loop was late is true of a busy machine.
    worse = [each for each in lines(log) if each["level"] not in ("debug", "info") and "watchdog" not in each["logger"]]
    assert worse == [], "nothing here wants a person"
