"""How much of the host's memory one launch may ask for."""

from __future__ import annotations

from django.conf import settings

from web.errors import Problem
from web.sizes import format_size


def require_memory(asked: int | None, most: int | None = None) -> None:
    """Refuses what is more than the `most`, in bytes, that a container may take; Problem.

    Without `most`: what an admin has set. How much the host has only the engine knows, and asks again.
    """
    if most is None:
        set_ = [size for size in (settings.GPUSHARE_CONTAINER_MEMORY, settings.GPUSHARE_HOST_MEMORY) if size]
        most = min(set_, default=None)
    if asked and most and asked > most:
        message = (
            f"{format_size(asked)} of host memory is more than a container may take: the most is {format_size(most)}."
        )
        raise Problem("memory_too_large", message, 400, "memory")
