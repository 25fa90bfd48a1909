"""How often somebody may ask is counted in Redis, in windows that all end, whatever falls between two steps.

Whoever has the password of that Redis can write there what they like: each node has it, also one that is stolen.
"""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import RequestFactory

from tests.support.eventually import until
from tests.support.redis_server import BIN, Redis, running_redis
from web import budgets
from web.http.throttle_cache import Counts
from web.people import signin

pytestmark = [pytest.mark.production, pytest.mark.skipif(BIN is None, reason="needs the distribution's Redis")]


@pytest.fixture
def redis() -> Iterator[Redis]:
    with running_redis() as made:
        yield made


@pytest.fixture
def counts(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    made = Counts(redis.url, {})
    monkeypatch.setattr(budgets, "cache", made)
    monkeypatch.setattr(budgets, "budget", lambda name: 3)
    yield made
    made._cache.get_client(None, write=True).connection_pool.disconnect()


WINDOW = 60  # seconds: none ends while a busy machine counts


def spend() -> bool:
    return budgets.spend("requests_a_second", "user:1", WINDOW)


def test_who_has_used_it_up_may_begin_again_when_the_window_ends(counts: Counts) -> None:
    assert [spend() for _ in range(5)] == [True, True, True, False, False]
    client: Any = counts._cache.get_client(None, write=True)
    (key,) = client.keys()
    assert 0 < client.pttl(key) <= 1000 * WINDOW
    client.pexpire(key, 1)  # it ends
    until(spend)


def test_window_that_ends_in_the_middle_of_a_count_is_followed_by_one_that_ends(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was counted on without an end: whoever asked in that moment was refused from then on."""
    client: Any = counts._cache.get_client(None, write=True)
    exists = type(client).exists

    def and_ends(self: Any, *names: str) -> int:
        found = int(exists(self, *names))
        self.delete(*names)
        return found

    spend()
    with monkeypatch.context() as patch:
        patch.setattr(type(client), "exists", and_ends)
        spend()
    (key,) = client.keys()
    assert 0 <= client.pttl(key) <= 1000 * WINDOW


def test_count_that_somebody_wrote_without_an_end_is_none(counts: Counts) -> None:
    client: Any = counts._cache.get_client(None, write=True)
    spend()
    (key,) = client.keys()
    client.set(key, 500)
    assert client.pttl(key) == -1
    assert [spend() for _ in range(4)] == [True, True, True, False]


def test_requests_share_connections(redis: Redis, counts: Counts) -> None:
    """Django makes a cache for each: every request connected to Redis, which took longer than many have to do."""
    client: Any = counts._cache.get_client(None, write=True)
    spend()
    before = client.info()["total_connections_received"]
    for _ in range(5):
        Counts(redis.url, {}).add("asked", 1, WINDOW)
    assert client.info()["total_connections_received"] == before


class Makes:
    """Whoever takes it out of a pickle makes this folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._folder),)


FAILURES = "failures:10.0.0.1"


def wait_of_a_stranger(counts: Counts, monkeypatch: pytest.MonkeyPatch, **written: bytes) -> float:
    """Who asks whether they may try a password, where somebody has written this into Redis."""
    monkeypatch.setattr(signin, "cache", counts)
    client: Any = counts._cache.get_client(None, write=True)
    for name, value in written.items():
        client.set(counts.make_key(FAILURES if name == "count" else f"{FAILURES}:{name}"), value)
    return signin.wait_of(RequestFactory().get("/", REMOTE_ADDR="10.0.0.1"), "bob")


@pytest.mark.parametrize("name", ["count", "until"])
def test_what_somebody_writes_there_is_never_run(
    counts: Counts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    made = tmp_path / "made"
    assert wait_of_a_stranger(counts, monkeypatch, **{name: pickle.dumps(Makes(made))}) == 0
    assert not made.exists()


ODD = [b"inf", b"nan", b"-inf", b"9" * 4000, b"1e308", b"-1e308", b"\xff", b"", b"1 2", b"9" * 5000]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd[:8]))
def test_number_that_cannot_be_keeps_nobody_out_for_longer_than_a_pause(
    counts: Counts, monkeypatch: pytest.MonkeyPatch, odd: bytes
) -> None:
    assert 0 < wait_of_a_stranger(counts, monkeypatch, count=b"50", until=odd) <= signin.PAUSE
    assert 0 <= wait_of_a_stranger(counts, monkeypatch, count=odd, until=b"1") <= signin.PAUSE


def test_moment_that_was_written_is_read_again(counts: Counts) -> None:
    counts.set("at", 1234567890.123456, 10)
    counts.add("often", 7, 10)
    assert counts.get_many(["at", "often"]) == {"at": 1234567890.123456, "often": 7}
