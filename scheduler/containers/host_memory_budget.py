"""Whether host memory has room for what a container has on its cards: three limits, all of which have to have it."""

from collections.abc import Iterable
from pathlib import Path

from scheduler.core.admission import size
from scheduler.sessions.live_containers import LiveContainer
from web.errors import Problem

MEMINFO = Path("/proc/meminfo")


def require(
    live: LiveContainer, live_containers: Iterable[LiveContainer], budget: int, left: int | None, *, by_owner: bool
) -> None:
    """Raises Problem with the figures.

    `budget`: bytes that the images of all `live_containers` may take together; `left`: what all containers together may
    still take of host memory, None if there is no such limit. `by_owner`: a person has it moved, not the core for
    another.
    """
    live_containers = list(live_containers)
    needed = sum(live.used(gpu) for gpu in live.quota)
    taken = sum(image(other) for other in live_containers)
    if taken + needed > budget:
        raise _too_little(
            f"Its {size(needed)} does not fit into host memory: of the {size(budget)} that may be used "
            f"for this {size(taken)} is taken (GPUSHARE_SWAP_MEMORY)."
        )
    if needed > (there := available()):
        raise _too_little(f"Its {size(needed)} does not fit: the host has {size(there)} left.")
    if left is not None and needed > left:
        raise _too_little(
            f"Its {size(needed)} does not fit: all containers together may take {size(left)} more of host memory "
            "(GPUSHARE_HOST_MEMORY)."
        )
    # An owner takes no more than the others still can; who is alone may have all of it, and one may always go.
    has = sum(image(each) for each in live_containers if each.owner == live.owner)
    others = any(each.owner != live.owner for each in live_containers)
    rest = max(0, budget - taken - needed)
    if by_owner and others and has and has + needed > rest:
        raise _too_little(
            f"Its {size(needed)} would leave {size(rest)} of the host memory for this to all others, and its owner has "
            f"{size(has)} of it already (GPUSHARE_SWAP_MEMORY). Resume or end one of those first."
        )


def image(live: LiveContainer) -> int:
    """Bytes of host memory that it takes, or may still take while its memory is being moved."""
    leases = (lease for session in live.sessions.values() for lease in session.leases.values())
    return sum(lease.granted for lease in leases) if live.swap else 0


def available() -> int:
    """Bytes of host memory that programs can still get, by the kernel's own estimate."""
    return host_memory()[0]


def host_memory() -> tuple[int, int]:
    """What is available of it, and all there is, in bytes."""
    fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    free, total = (int(fields[name].split()[0]) << 10 for name in ("MemAvailable", "MemTotal"))
    return free, total


def _too_little(sentence: str) -> Problem:
    return Problem("no_host_memory", sentence, 409)
