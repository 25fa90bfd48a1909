"""Releases of the engine and of runc with a hole through which a program leaves its container, or gets more in it.

A container has neither capabilities nor new privileges here, which closes many such holes; the ones below it does not.
"""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Version = tuple[int, ...]
ANSWERS_WITHIN = 10  # seconds


@dataclass(frozen=True, slots=True)
class Hole:
    """`since` and `mended` are the first release with it and the first without."""

    component: str  # as Docker calls it
    mended: Version
    name: str
    what: str
    since: Version = (0,)


TOOLKIT = "NVIDIA Container Toolkit"
MASKED = "an image or a volume can redirect what runc masks, up to writing to the host's /proc"
HOLES = (
    Hole("Engine", (20, 10, 18), "CVE-2022-36109", "a program keeps groups that it should not have"),
    Hole("runc", (1, 1, 12), "CVE-2024-21626", "a container can begin in a folder of the host"),
    Hole("runc", (1, 2, 8), "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", MASKED),
    Hole("runc", (1, 3, 3), "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", MASKED, since=(1, 3)),
    Hole(TOOLKIT, (1, 17, 8), "CVE-2024-0132, CVE-2025-23266", "an image runs code as root on the host"),
)


def outdated(components: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each of Docker's `components` that is older than it should be, with all that is known of it."""
    sentences = []
    for component in components:
        name, text = str(component.get("Name")), str(component.get("Version"))
        version = _version(text)
        holes = [hole for hole in HOLES if hole.component == name and version and hole.since <= version < hole.mended]
        if holes:
            least = ".".join(map(str, max(hole.mended for hole in holes)))
            known = "; ".join(f"{hole.name}: {hole.what}" for hole in holes)
            whose = "The" if name == TOOLKIT else "Docker's"
            sentences.append(
                f"{whose} {name} is {text}: it should be {least} or newer ({known}). "
                "A distribution may have mended an older one: then its own security notes name these."
            )
    return sentences


def toolkit(command: Sequence[str] = ("nvidia-ctk", "--version")) -> list[dict[str, str]]:
    """NVIDIA's Container Toolkit of this host as one of Docker's components; none where it does not say its version.

    Blocking.
    """
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ANSWERS_WITHIN).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = re.search(r"version (\S+)", said)
    return [{"Name": TOOLKIT, "Version": found[1]}] if found else []


def known_good(components: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these say their versions, and none is older than it should be. Not so if there are none."""
    known = [_version(str(component.get("Version"))) for component in components]
    return bool(known) and all(known) and not outdated(components)


def _version(text: str) -> Version:
    """Of "v1.2.8", "20.10.24+dfsg1": its leading numbers. Empty if there are none, and then nothing is known."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(map(int, match[1].split("."))) if match else ()
