"""The quota of a launch that names none, by its image's label, else a default; and how much of the host's memory."""

from collections.abc import Mapping

from django.conf import settings

from web.errors import Problem
from web.sizes import format_size, parse_size

LABEL = "com.nvidia.memory.limit"
LEAST = 2**20  # bytes: less has no CUDA context, and was meant otherwise
DEFAULT = 2**30  # bytes, where neither launch nor image says anything (docs/rest.md)


def read(text: str | int) -> int:
    """Bytes. Raises ValueError with a sentence if this is no size, or none of a quota."""
    return parse_size(text, LEAST)


def of_image(labels: Mapping[str, str]) -> int:
    """Bytes, by an image's labels. Problem `bad_label` if its label is no size."""
    if (label := labels.get(LABEL)) is None:
        return DEFAULT
    try:
        return read(label)
    except ValueError as error:
        message = f"The image's label {LABEL} cannot be used: {error} Give gpu_memory."
        raise Problem("bad_label", message, 400, "gpu_memory") from None


def asked(gpu_memory: int | None) -> int:
    """Bytes, before anybody has looked at the image: the label may still say otherwise."""
    return DEFAULT if gpu_memory is None else gpu_memory


def require_host_memory(asked: int | None, most: int | None = None) -> None:
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
