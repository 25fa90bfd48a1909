"""Answers "would it fit now; if not, behind whom, and when at the latest" from what is so at this moment; and, for a
call that waits, who has to end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from scheduler import clock
from scheduler.containers import placement
from scheduler.core.forecast import forecast, next_after
from scheduler.core.state import Request
from scheduler.sessions.broker import Broker
from web.errors import Problem


def foresee(broker: Broker, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The answer as JSON (`earliest` in seconds from now), and the sentence for people. Raises Problem."""
    state, quota = broker.state, int(arguments["gpu_memory"])
    asked: int | list[str] = arguments.get("gpus", 1)
    gpus = placement.choose(state, asked, quota) if isinstance(asked, int) else asked
    names = {tenant.id: tenant.name for tenant in broker.tenants.values()}
    heads = {gpu: idle(broker, gpu) for gpu in gpus}
    found = forecast(state, dict.fromkeys(gpus, quota), time_limits(broker), heads, names)
    if not found.possible:
        raise Problem("over_capacity", found.explanation, 400, "gpu_memory")
    # First those in the queue, then those who hold the memory; nobody twice.
    behind = list(dict.fromkeys((*found.behind, *found.holders)))
    earliest = None if found.latest is None else max(0.0, found.latest - broker.now())
    return {"fits": found.fits, "behind": behind, "earliest": earliest, "message": found.explanation}, found.explanation


def turn_of(broker: Broker, request: Request) -> str:
    """Says "Next when train ends.", and by when at the latest if that is known; nothing if no single end is enough."""
    ends = time_limits(broker)
    name = next_after(broker.state, request, ends)
    tenant = broker.tenants.get(name) if name else None
    if tenant is None:
        return ""
    if tenant.id not in ends:
        return f"Next when {tenant.name} ends."
    latest = clock.now() + timedelta(seconds=ends[tenant.id] - broker.now())
    return f"Next when {tenant.name} ends, at {latest:%H:%M} UTC at the latest."


def time_limits(broker: Broker) -> dict[str, float]:
    """By when time limits end containers, on the state's clock. One that has not started yet has all its time."""
    now, wall = broker.now(), clock.now()
    ends = {}
    for tenant in broker.tenants.values():
        if tenant.ttl is not None:
            own = wall + timedelta(seconds=tenant.clock_ahead)  # as its own clock stands
            ends[tenant.id] = now + tenant.ttl - (own - (tenant.started_at or own)).total_seconds()
    return ends


def idle(broker: Broker, gpu: str) -> int:
    """Headroom that a take-back would make free, in bytes. What a guaranteed container gives back stays reserved."""
    return sum(
        session.leases[gpu].headroom
        for tenant in broker.tenants.values()
        if gpu in tenant.quota and not broker.state.containers[tenant.id].guaranteed
        for session in tenant.sessions.values()
    )
