"""Points in time as scripts and charts take them: seconds since 1970, UTC."""

from __future__ import annotations

from datetime import datetime


def seconds(at: datetime | None) -> float | None:
    """None stays None."""
    return None if at is None else at.timestamp()
