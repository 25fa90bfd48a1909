"""Where throttles count in production: in Redis, so that all web processes count together."""

from __future__ import annotations

import logging
from typing import Any

from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


def _either(name: str) -> Any:
    def call(self: Counts, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(RedisCache, name)(self, *arguments, **options)
        except RedisError as error:
            log.warning("Redis does not answer, so this process counts for itself: %s", error)
            return getattr(self.own, name)(*arguments, **options)

    return call


class Counts(RedisCache):
    """While Redis is away each process counts for itself: nothing stops, and nobody gets to try passwords freely."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self.own = LocMemCache("redis is away", params)

    add = _either("add")
    get = _either("get")
    get_many = _either("get_many")
    set = _either("set")
    incr = _either("incr")
    touch = _either("touch")
    delete = _either("delete")
