"""Host names of applications in containers: by `gpushare open` on a laptop, and by the door (GPUSHARE_APPS)."""

from __future__ import annotations

import re

LABEL = 63  # characters of one part of a host name


def label(name: str, key: str) -> str:
    """The first part of a host name that is this container's alone, without the port that follows. `key`: its id.

    Cookies know no ports, and a later container of the same name, or of one that looks alike here, is to have none of
    this one's.
    """
    end = f"-{key[:8]}"
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (plain[: LABEL - len(f"{end}-65535")].rstrip("-") or "container") + end
