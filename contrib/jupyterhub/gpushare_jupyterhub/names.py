"""What a person's notebook is called on the appliance."""

from __future__ import annotations

import hashlib
import re

LONGEST = 63  # letters of a container's name
DIGEST = 8


def container_name(person: str, server: str) -> str:
    """One for each server of each person, of the letters that a container's name may have.

    What cannot be written as it is has a digest: two that were written alike would end each other, as a start ends what
    an earlier one of its name has left.
    """
    whole = f"jupyter-{person}" + (f"-{server}" if server else "")
    name = re.sub(r"[^a-zA-Z0-9_.-]", "-", whole)[:LONGEST]
    if name == whole:
        return name
    return f"{name[: LONGEST - DIGEST - 1]}-{hashlib.sha256(whole.encode()).hexdigest()[:DIGEST]}"
