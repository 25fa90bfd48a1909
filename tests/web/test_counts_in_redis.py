"""How often somebody may ask is counted in Redis, in windows that all end, whatever falls between two steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.eventually import until
from tests.support.redis_server import BIN, running_redis
from web import budgets
from web.http.throttle_cache import Counts

pytestmark = [pytest.mark.production, pytest.mark.skipif(BIN is None, reason="needs the distribution's Redis")]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    with running_redis() as redis:
        made = Counts(redis.url, {})
        monkeypatch.setattr(budgets, "cache", made)
        monkeypatch.setattr(budgets, "budget", lambda name: 3)
        yield made
        made._cache.get_client(None, write=True).connection_pool.disconnect()


def spend() -> bool:
    return budgets.spend("requests_a_second", "user:1", 1)


def test_who_has_used_it_up_may_begin_again_when_the_window_ends(counts: Counts) -> None:
    assert [spend() for _ in range(5)] == [True, True, True, False, False]
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
    assert 0 <= client.pttl(key) <= 1000


def test_count_that_an_earlier_release_has_left_without_an_end_is_none(counts: Counts) -> None:
    client: Any = counts._cache.get_client(None, write=True)
    spend()
    (key,) = client.keys()
    client.set(key, 500)
    assert client.pttl(key) == -1
    assert [spend() for _ in range(4)] == [True, True, True, False]
