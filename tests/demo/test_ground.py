"""What a start says of what it runs on: plainly where that is not what a host should have."""

import pytest

from appliance.running.ground import described

REAL, MADE = ({"name": "Card", "capacity": 5 << 30, "simulated": simulated} for simulated in (False, True))
CARD = "  Card: Card (5.0 GiB to share)\n"
WHY = "\n  `gpushare doctor` says why."
NO_GPU = "  No NVIDIA GPU was found, so this card is SIMULATED.\n"
NO_DOCKER = "  Running: local processes (no Docker engine answered)"


@pytest.mark.parametrize(
    ("gpus", "engine", "card", "runs"),
    [
        ("auto", "auto", REAL, "docker"),
        ("auto:cap=5GiB", "docker", MADE, "docker"),
        ("auto", "auto", REAL, "process"),
        ("sim:1x5GiB", "process", MADE, "process"),
    ],
)
def test_it_is_said_on_what_it_runs_and_who_says_why(settings, gpus, engine, card, runs):
    settings.GPUSHARE_GPUS, settings.GPUSHARE_ENGINE = gpus, engine
    expected = {
        ("auto", "docker"): f"{CARD}  Running: Docker containers",
        ("auto:cap=5GiB", "docker"): f"{CARD}{NO_GPU}  Running: Docker containers{WHY}",
        ("auto", "process"): f"{CARD}{NO_DOCKER}{WHY}",
        ("sim:1x5GiB", "process"): f"{CARD}  This card is SIMULATED.\n  Running: local processes",
    }
    assert described([card], runs) == expected[gpus, runs]
