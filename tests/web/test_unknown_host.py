"""Asked by a name that it does not know, the appliance says which setting that is: on the page, in REST, in its log."""

import logging

import pytest

from web.http import hosts

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def known(settings, monkeypatch):
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
    monkeypatch.setattr(hosts, "_logged", set())


def asked(client, host, path="/"):
    return client.get(path, HTTP_HOST=host)


def test_the_page_names_the_setting_and_the_name(client):
    answer = asked(client, "gpu1.lab:8000")
    page = answer.content.decode()
    assert answer.status_code == 400
    assert "This host name is not allowed" in page
    assert 'GPUSHARE_ALLOWED_HOSTS="… gpu1.lab"' in page.replace("&quot;", '"')
    assert asked(client, "[fe80::1]:8000").content.decode().count("[fe80::1]") == 2
    assert asked(client, "localhost:8000", "/healthz").status_code == 200


def test_rest_says_the_same_as_json(client):
    answer = asked(client, "gpu1.lab", "/api/v1/containers/")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unknown_host")
    assert '"gpu1.lab"' in error["message"]
    assert "GPUSHARE_ALLOWED_HOSTS" in error["message"]


@pytest.mark.parametrize("host", ["<script>alert(1)</script>", 'a"onload=x', "a b", "a/../b", "x" * 300, "\xff", ""])
def test_what_is_no_name_is_not_repeated(client, host, caplog):
    for path in ("/", "/api/v1/containers/"):
        answer = asked(client, host, path)
        assert answer.status_code == 400
        assert not host or host not in answer.content.decode()
        assert "GPUSHARE_ALLOWED_HOSTS" in answer.content.decode() or path != "/"
    assert not host or host not in caplog.text


def test_the_log_says_it_once_a_name_with_the_line_to_set_and_not_for_ever(client, caplog):
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        asked(client, "gpu1.lab")
    messages = [record.getMessage() for record in caplog.records if record.name == "gpushare.hosts"]
    assert messages == [
        'A request for the host name "gpu1.lab" was refused. If that is this host: '
        'GPUSHARE_ALLOWED_HOSTS="localhost 127.0.0.1 gpu1.lab"'
    ]
    for number in range(3 * hosts.NAMES):
        asked(client, f"made-up-{number}.example")
    messages = [record.getMessage() for record in caplog.records if record.name == "gpushare.hosts"]
    assert len(messages) == hosts.NAMES + 1
    assert messages[-1].startswith("Further refused names")


@pytest.mark.parametrize("known", [["localhost"], ["*"], [".lab.example"]])
@pytest.mark.parametrize("host", ["10.1.2.3:8000", "gpushare-web.default.svc", "[fd00::7]", "a b"])
def test_a_health_check_asks_by_whatever_address_it_has(client, settings, known, host):
    """A kubelet asks by the pod's address, which no setting can name in advance."""
    settings.ALLOWED_HOSTS = known
    assert asked(client, host, "/healthz").status_code == 200
    assert asked(client, host, "/readyz").json()["database"] == "ok"
