"""Docker's API is on this host: no proxy that the environment names leads there."""

from scheduler.engines.docker.client import DirectClient


def test_an_engine_at_a_tcp_port_is_asked_past_the_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    client = DirectClient("tcp://127.0.0.1:2375", version="1.41")
    used = client.merge_environment_settings(f"{client.base_url}/info", {}, None, None, None)["proxies"]
    client.close()
    assert not used
