"""Where throttles count in production: in Redis, so that all web processes count together."""

from __future__ import annotations

import logging
from functools import cache, cached_property
from math import isfinite
from typing import Any

from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


IF_IT_ENDS = """if redis.call('pttl', KEYS[1]) >= 0 then return redis.call('incrby', KEYS[1], ARGV[1]) end
redis.call('del', KEYS[1])"""


class Numbers:
    """How a count is written: as text. Each node has Redis' password, and Django's own way (pickle) does whatever is
    written there, as the web side. What is no number counts as nothing.
    """

    def dumps(self, number: float) -> str:
        return repr(number)

    def loads(self, written: bytes) -> float:
        try:
            number = float(written)
        except ValueError:
            return 0.0
        return number if isfinite(number) else 0.0


@cache
def _client(server: str) -> RedisCacheClient:
    """One for all: Django makes a cache for each request, which would connect anew."""
    return RedisCacheClient([server], Numbers)  # type: ignore[arg-type]


class Ending(RedisCache):
    """Django's `incr` looks whether there is a count, and then counts: one that has run out in between begins again
    without an end, and whoever it is of is refused for ever. Here both are one step, and such a count is none.
    """

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> int:
        named = self.make_and_validate_key(key, version=version)
        count = self._cache.get_client(named, write=True).eval(IF_IT_ENDS, 1, named, delta)
        if count is None:
            raise ValueError(f"Key '{key}' not found.")
        return int(count)


def _either(name: str) -> Any:
    def call(self: Counts, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(Ending, name)(self, *arguments, **options)
        except RedisError as error:
            log.warning("Redis does not answer, so this process counts for itself: %s", error)
            return getattr(self.own, name)(*arguments, **options)

    return call


class Counts(Ending):
    """While Redis is away each process counts for itself: nothing stops, and nobody gets to try passwords freely."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._server = server
        self.own = LocMemCache("redis is away", params)

    @cached_property
    def _cache(self) -> Any:
        return _client(self._server)

    add = _either("add")
    get = _either("get")
    get_many = _either("get_many")
    set = _either("set")
    incr = _either("incr")
    touch = _either("touch")
    delete = _either("delete")
