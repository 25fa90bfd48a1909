"""How many at once, and how often. A limit is a number, or the name of a setting (appliance/budgets.py)."""

import asyncio
import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Hashable

from django.conf import settings
from django.core.cache import cache

from web.errors import Problem


def budget(limit: str | int) -> int:
    return limit if isinstance(limit, int) else int(getattr(settings.GPUSHARE_BUDGETS, limit))


class Place:
    """One of what is limited. Given back by `free`, and at the latest when nobody has it any more."""

    def __init__(self, places: "Places", key: Hashable) -> None:
        self._places, self._key = places, key
        self._taken = True

    def free(self) -> None:
        if self._taken:
            self._taken = False
            self._places.give_back(self._key)

    __del__ = free


class Places:
    """At once, in this process: so many for each key, so many in all."""

    def __init__(self, each: str | int, in_all: str | int = "") -> None:
        self.each, self.in_all = each, in_all
        self._held: Counter[Hashable] = Counter()
        self._lock = threading.RLock()  # a place may be collected as garbage while its own thread is in here

    def take(self, key: Hashable) -> Place | None:
        """None if there is none for this key just now."""
        with self._lock:
            if self._held[key] >= budget(self.each) or (self.in_all and self._held.total() >= budget(self.in_all)):
                return None
            self._held[key] += 1
            return Place(self, key)

    def require(self, key: Hashable, what: str) -> Place:
        """Raises Problem 429. `what` names it in words: "logs are followed"."""
        place = self.take(key)
        if place is None:
            with self._lock:
                own = self._held[key] >= budget(self.each)
            whom = f"by you ({budget(self.each)} at once)" if own else f"here ({budget(self.in_all)} at once)"
            raise too_many(f"Too many {what} {whom}. End one, or try again later.", 5)
        return place

    def give_back(self, key: Hashable) -> None:
        with self._lock:
            self._held[key] -= 1
            if self._held[key] <= 0:
                del self._held[key]

    def held(self, key: Hashable) -> int:
        return self._held.get(key, 0)


def too_many(message: str, wait: float) -> Problem:
    return Problem("too_many_requests", message, 429, wait=wait)


def spend(name: str, key: str, seconds: int) -> bool:
    """Counts one of budget `name` within `seconds`, in all web processes together. False once it is used up.

    In windows that begin with the first of them: who is within the budget never waits, and who is not may begin again
    when the window ends.
    """
    entry = f"spent:{name}:{key}"
    try:
        return bool(cache.incr(entry) <= budget(name))
    except ValueError:  # a window begins, or another request has begun it meanwhile
        return cache.add(entry, 1, seconds) or spend(name, key, seconds)


class Pace:
    """Of one connection: whoever sends more in a second waits for the next one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._second, self._count = 0.0, 0

    async def keep(self) -> None:
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._count = now, 0
        self._count += 1
        if self._count > self._limit:
            await asyncio.sleep(self._second + 1 - now)


def address_key(address: str) -> str:
    """An IPv6 address's /64 network, of which one customer has all; an IPv4 address, however it is written."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return str(found)
