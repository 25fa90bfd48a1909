"""The quota of a launch that names none: what its image's label says, else a default."""

from __future__ import annotations

from collections.abc import Mapping

from web.errors import Problem
from web.sizes import parse_size

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
