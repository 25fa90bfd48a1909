"""May this container start, or have this quota? Answers are `Refused` with the numbers, or None for yes."""

from decimal import ROUND_HALF_UP, Decimal
from math import isnan

from scheduler.core import reserved, safety
from scheduler.core.changes import put_container
from scheduler.core.effects import Reason, Refused
from scheduler.core.state import HIGHEST_PRIORITY, LOWEST_PRIORITY, Container, State

_HUNDREDTHS = Decimal("0.01")


def size(amount: int) -> str:
    """Bytes for people: "1.5 GiB". The text is the one that every screen has for it (`web.sizes.format_size`)."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(amount) >= unit:
            number = str(Decimal(amount / unit).quantize(_HUNDREDTHS, ROUND_HALF_UP))
            return number.rstrip("0").rstrip(".") + f" {name}"
    return f"{amount} bytes"


def impossible(state: State, wanted: Container, *, running: bool = False) -> Refused | None:
    """What no waiting and no freeing can make possible. What is already running is taken even beyond capacity."""
    if not wanted.quota:
        return Refused(Reason.INVALID, "A container needs a quota on at least one GPU.", wanted.id)
    for gpu, quota in wanted.quota.items():
        if gpu not in state.gpus:
            return Refused(Reason.UNKNOWN, f"There is no GPU {gpu}.", wanted.id)
        if quota <= 0:
            return Refused(Reason.INVALID, f"A quota must be more than 0 bytes, not {quota}.", wanted.id)
        most = state.gpus[gpu].most
        if quota > most and not running:
            text = f"The quota of {size(quota)} is more than GPU {gpu} can ever give: {size(most)}."
            return Refused(Reason.OVER_CAPACITY, text, wanted.id)
    if not LOWEST_PRIORITY <= wanted.priority <= HIGHEST_PRIORITY:
        return bad_priority(wanted.id, wanted.priority)
    if wanted.max_wait is not None and (isnan(wanted.max_wait) or wanted.max_wait < 0):
        return Refused(Reason.INVALID, f"A longest wait of {wanted.max_wait} seconds makes no sense.", wanted.id)
    return None


def bad_priority(container: str, priority: int) -> Refused:
    text = f"A priority is from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}, not {priority}."
    return Refused(Reason.INVALID, text, container)


def blocked(state: State, wanted: Container) -> Refused | None:
    """What speaks against it as things are now: idle headroom that is taken back may make it possible."""
    known = state.containers.get(wanted.id)
    for gpu, quota in wanted.quota.items():
        leased = wanted.leased.get(gpu, 0) + wanted.out.get(gpu, 0)
        if leased > quota:
            text = f"It holds {size(leased)} of GPU {gpu}, more than the new quota of {size(quota)}."
            return Refused(Reason.INVALID, text, wanted.id)
        reserving = safety.held(wanted, gpu) - (safety.held(known, gpu) if known else 0)
        if reserving > 0 and (shortage := _shortage(state, gpu, reserving, wanted.owner)):
            return Refused(Reason.SHORTAGE, shortage, wanted.id)
    if known and not safety.harmless(state, put_container(state, wanted), wanted.id):
        return Refused(Reason.UNSAFE, _unsafe(state, known, wanted), wanted.id)
    return None


def _shortage(state: State, gpu: str, reserving: int, owner: str) -> str:
    """Why so much cannot be reserved: it is not there, or others already wait for it."""
    free = reserved.free(state, gpu, owner)
    if reserving > free:
        kept = reserved.kept(state, gpu, owner)
        others = f", {size(kept)} more reserved" if kept else ""
        return f"{size(reserving)} of GPU {gpu} cannot be guaranteed now: {size(max(0, free))} is free{others}."
    waiting = sum(request.gpu == gpu for request in state.waiting)
    waiting += sum(gpu in state.containers[name].quota for name in state.expected.containers)
    if waiting:
        return f"{size(reserving)} of GPU {gpu} cannot be guaranteed now: {waiting} already wait for memory there."
    return ""


def _unsafe(state: State, known: Container, wanted: Container) -> str:
    parts = [
        f"{size(known.quota[gpu])} to {size(quota)} on GPU {gpu} ({size(max(0, safety.free(state, gpu)))} free)"
        for gpu, quota in wanted.quota.items()
        if quota > known.quota[gpu]
    ]
    return f"Raising the quota from {' and '.join(parts)} could cause a deadlock."
