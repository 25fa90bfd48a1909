"""A proxy that the environment names: never for this host itself, and a sentence where it cannot be used."""

import os
import subprocess
import sys

import pytest

from appliance import proxies
from tests.cli.support import gpushare
from tests.support.appliance import ROOT
from tests.support.proxy import a_proxy, environ_of

DEAD = "http://127.0.0.1:9"
NAMES = [name for each in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (each, each.upper())]


@pytest.fixture
def environ(monkeypatch):
    """Sets the environment to these and no other proxies."""

    def set_to(**given):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    return set_to


HERE = ["127.0.0.1:8000", "127.8.8.8", "localhost:8000", "LOCALHOST", "gpu.localhost", "[::1]:8000", "0.0.0.0", "[::]"]


@pytest.mark.parametrize("host", HERE)
def test_no_proxy_leads_to_this_host(environ, host):
    environ(http_proxy=DEAD, https_proxy=DEAD, all_proxy="socks5://127.0.0.1:9")
    assert proxies.proxy_for(f"http://{host}/") is None
    assert proxies.proxy_for(f"https://{host}/") is None


def test_the_environment_names_the_proxy_for_other_hosts(environ):
    environ(http_proxy="proxy.lab:3128", ALL_PROXY="http://other.lab:1")
    assert proxies.proxy_for("http://gpu1.lab:8000") == "http://proxy.lab:3128"
    assert proxies.proxy_for("https://gpu1.lab") == "http://other.lab:1"
    assert proxies.proxy_for("http://[broken") is None


@pytest.mark.parametrize(
    ("entries", "excluded", "used"),
    [
        ("[::1],localhost", [], ["gpu1.lab"]),
        ("*", ["gpu1.lab", "10.0.0.1"], []),
        ("gpu1.lab, .site.lab", ["gpu1.lab", "GPU1.lab:8000", "a.gpu1.lab", "x.site.lab"], ["agpu1.lab"]),
        ("*.site.lab", ["x.site.lab"], ["site.example"]),
        ("gpu1.lab:8000", ["gpu1.lab:8000"], ["gpu1.lab:9000"]),
        ("10.0.0.0/8,[fd00::7]", ["10.9.8.7", "[fd00::7]:8000"], ["11.0.0.1", "[fd00::8]", "gpu1.lab"]),
        (" , [broken, x:y:z", [], ["gpu1.lab"]),
    ],
)
def test_no_proxy_excludes_names_addresses_and_networks(environ, entries, excluded, used):
    environ(http_proxy=DEAD, no_proxy=entries)
    assert {host: proxies.proxy_for(f"http://{host}/") for host in excluded} == dict.fromkeys(excluded)
    assert {host: proxies.proxy_for(f"http://{host}/") for host in used} == dict.fromkeys(used, DEAD)


@pytest.mark.parametrize("no_proxy", ["", "[::1],localhost"])
def test_the_command_line_reaches_an_appliance_on_this_host_past_every_proxy(appliance, no_proxy):
    with a_proxy() as proxy:
        environ = (
            appliance.environ | environ_of(proxy.url) | {"ALL_PROXY": "socks5://127.0.0.1:9", "NO_PROXY": no_proxy}
        )
        done = gpushare("ps", environ=environ)
        assert (done.returncode, done.stderr) == (0, "")
        done = gpushare("run", "--gpu-memory", "64MiB", "local", "echo", "seen", environ=environ)
        assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr
        assert proxy.asked == []


def test_the_command_line_uses_the_proxy_for_other_hosts():
    with a_proxy() as proxy:
        environ = {"GPUSHARE_URL": "http://gpu1.invalid:8000", "GPUSHARE_TOKEN": "x", "http_proxy": proxy.url}
        assert gpushare("ps", environ=environ).returncode != 0
        assert proxy.asked == ["gpu1.invalid"]


@pytest.mark.parametrize("proxy", ["socks5://user:secret@127.0.0.1:9", "foo://user:secret@127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_named_in_a_sentence(proxy):
    """As is one of SOCKS where the package for it is missing; its password stays where it is."""
    environ = {"GPUSHARE_URL": "http://gpu1.invalid:8000", "GPUSHARE_TOKEN": "x", "ALL_PROXY": proxy}
    done = gpushare("ps", environ=environ)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "the proxy that the environment names for gpu1.invalid cannot be used" in done.stderr
    assert "no_proxy" in done.stderr
    assert "secret" not in done.stderr


def test_joining_says_it_too(tmp_path):
    words = [
        sys.executable,
        "-m",
        "appliance.joining",
        "join",
        "http://gpu1.invalid",
        "token",
        "--file",
        str(tmp_path / "env"),
    ]
    environ = os.environ | {"ALL_PROXY": "socks5://127.0.0.1:9"}
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cannot be used" in done.stderr
