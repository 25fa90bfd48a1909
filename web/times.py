"""Points in time as scripts and charts take them: seconds since 1970, UTC."""

from datetime import datetime


def seconds(at: datetime | None) -> float | None:
    """None stays None."""
    return None if at is None else at.timestamp()


def span(seconds: float) -> str:
    """As the command line writes it, which may import nothing of ours: 8 s, 3 min 20 s, 2 h; no part of 0."""
    rest, words = max(0, int(seconds)), list[str]()
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or (unit == "s" and not words):
            words.append(f"{count} {unit}")
        elif words:
            break
    return " ".join(words[:2])
