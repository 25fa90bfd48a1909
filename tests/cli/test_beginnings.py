"""Which container the beginning of an id means, where ids are alike: not to be had by launching."""

import pytest

from appliance.cli.client import Client
from appliance.cli.errors import Problem
from appliance.cli.login import Login

LIVING = ["aaaa1111-0000-0000-0000-000000000001", "aaaa2222-0000-0000-0000-000000000002"]
ENDED = ["aaaa1133-0000-0000-0000-000000000003", "bbbb4444-0000-0000-0000-000000000004"]


@pytest.fixture
def client(monkeypatch):
    """An appliance with these containers, none of which has a name that matters."""

    def containers(self, *, every=False):
        return iter([{"id": each} for each in LIVING + (ENDED if every else [])])

    monkeypatch.setattr(Client, "containers", containers)
    monkeypatch.setattr(Client, "get", lambda self, path, **asked: {"results": [], "next": None})
    made = Client(Login("http://nowhere", ""))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("word", "meant"),
    [("aaaa1", LIVING[0]), ("AAAA2222-0", LIVING[1]), ("aaaa11", LIVING[0]), ("aaaa113", ENDED[0]), ("bbbb", ENDED[1])],
)
def test_a_beginning_means_the_only_living_one_else_the_only_ended_one(client, word, meant):
    assert client.container(word)["id"] == meant


@pytest.mark.parametrize(
    ("word", "code"), [("aaaa", "ambiguous"), ("cccc", "not_found"), ("bbb", "not_found"), ("", "not_found")]
)
def test_what_is_not_clear_is_refused(client, word, code):
    with pytest.raises(Problem) as caught:
        client.container(word)
    assert caught.value.code == code
