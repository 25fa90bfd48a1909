"""Where the address and the token come from, and where they never go."""

import stat

import pytest

from appliance.cli import login
from appliance.cli.errors import Problem
from appliance.cli.login import Login

STORED = Login("https://gpu.lab.example", "gps_stored")


@pytest.fixture
def environ(tmp_path):
    """A home of its own: nothing stored, and not on the appliance's host."""
    return {"GPUSHARE_CONFIG": str(tmp_path / "config"), "GPUSHARE_HOME": str(tmp_path / "var")}


def test_what_was_stored_is_found_and_only_its_owner_can_read_it(environ):
    path = login.store(STORED, environ)
    assert login.find(environ) == STORED
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_storing_again_replaces_a_file_that_others_could_read(environ):
    path = login.store(STORED, environ)
    path.chmod(0o644)
    login.store(Login(STORED.url, "gps_new"), environ)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert login.find(environ).token == "gps_new"
    assert list(path.parent.iterdir()) == [path]


def test_without_gpushare_config_it_lies_under_the_home(tmp_path):
    login.store(STORED, {"HOME": str(tmp_path)})
    assert (tmp_path / ".config" / "gpushare" / "login.json").exists()


def test_the_environment_goes_first(environ):
    login.store(STORED, environ)
    given = environ | {"GPUSHARE_URL": "http://other:9000/", "GPUSHARE_TOKEN": "gps_given"}
    assert login.find(given) == Login("http://other:9000", "gps_given")
    assert login.find(environ | {"GPUSHARE_TOKEN": "gps_given"}) == Login(STORED.url, "gps_given")


def test_a_stored_token_is_never_sent_to_another_address(environ):
    login.store(STORED, environ)
    assert login.find(environ | {"GPUSHARE_URL": "https://gpu.lab.example/"}) == STORED
    with pytest.raises(Problem, match=r"not logged in for https://elsewhere\.example"):
        login.find(environ | {"GPUSHARE_URL": "https://elsewhere.example"})


def test_on_the_appliances_own_host_the_admin_token_serves(environ, tmp_path):
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "admin-token").write_text("gps_admin\n")
    assert login.find(environ) == Login("http://127.0.0.1:8000", "gps_admin")
    assert login.find(environ | {"PORT": "8123", "HOST": "0.0.0.0"}) == Login("http://127.0.0.1:8123", "gps_admin")
    with pytest.raises(Problem, match="not logged in"):
        login.find(environ | {"GPUSHARE_URL": "https://elsewhere.example"})


def test_nothing_known_says_what_to_do(environ):
    with pytest.raises(Problem) as caught:
        login.find(environ)
    assert caught.value.line() == "not logged in: gpushare login URL, or set GPUSHARE_TOKEN"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": "http://x"}'])
def test_a_broken_file_says_what_to_do(environ, content):
    login.store(STORED, environ).write_text(content)
    with pytest.raises(Problem, match="cannot be read"):
        login.find(environ)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("gpu:8000", "http://gpu:8000"),
        (" https://gpu.lab.example/ ", "https://gpu.lab.example"),
        ("http://gpu/api/v1/", "http://gpu"),
    ],
)
def test_addresses_are_tidied(given, address):
    assert login.tidy(given) == address
