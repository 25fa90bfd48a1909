"""Settings that make no sense stop the start with a sentence; so does a variable of ours that is no setting."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from appliance import budgets, directory, environment, settings

ROOT = Path(__file__).parents[2]
SETTINGS = {name for name in environment._settings if name.startswith("GPUSHARE_")}
SETTINGS |= {*budgets.NAMES, *directory.SETTINGS}


def refusal(home: Path, **given: str) -> str:
    """What a start with these settings says."""
    command = [sys.executable, str(ROOT / "manage.py"), "version"]
    done = subprocess.run(
        command, env={"GPUSHARE_HOME": str(home), **given}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"GPUSHARE_IDLE_MINUTE": "5"}, "GPUSHARE_IDLE_MINUTE is not a setting.* nearest is GPUSHARE_IDLE_MINUTES"),
        ({"GPUSHARE_WATCHED_FOLDERS": "/data"}, "GPUSHARE_WATCHED_FOLDERS is not a setting"),
        ({"GPUSHARE_BUDGET_FRIENDS": "8"}, "GPUSHARE_BUDGET_FRIENDS is not a setting.* nearest is GPUSHARE_BUDGET_"),
        ({"GPUSHARE_LDAP_BASE": "dc=lab"}, "GPUSHARE_LDAP_BASE is not a setting.* nearest is GPUSHARE_LDAP_"),
        ({"GPUSHARE_PORT": "8000"}, "GPUSHARE_PORT is not a setting.* nearest is GPUSHARE_PORTS"),
        ({"GPUSHARE_TLS": "1", "GPUSHARE_PUBLIC_URL": "http://gpu1.lab"}, "GPUSHARE_PUBLIC_URL .* with https"),
    ],
)
def test_a_start_is_refused_with_a_sentence(tmp_path: Path, given: dict[str, str], said: str) -> None:
    assert re.search(said, refusal(tmp_path, **given))


@pytest.mark.parametrize(
    "given",
    [
        {"GPUSHARE_SOCKET": "/run/gpushare/gpushare.sock", "GPUSHARE_SIM": "/card", "GPUSHARE_TOKEN": "t"},
        {"GPUSHARE_SERVICE_HOST": "10.0.0.1", "GPUSHARE_PORT": "tcp://10.0.0.1:8000", "GPUSHARE_CARD_GPU_2": "1"},
        {"GPUSHARE_WEB_SERVICE_PORT_HTTP": "8000", "GPUSHARE_WEB_PORT_8000_TCP_ADDR": "10.0.0.1"},
        {"GPUSHARE_WATCHED_FOLDERS": ""},
    ],
)
def test_variables_that_others_set_are_no_reason(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment.refuse_unknown(*SETTINGS)


def test_the_page_lists_all_settings() -> None:
    listed = "".join((ROOT / "docs" / page).read_text() for page in ("settings.md", "people.md", "nodes.md"))
    assert {name for name in SETTINGS if name not in listed} == set()
    assert settings.GPUSHARE_BUDGETS
