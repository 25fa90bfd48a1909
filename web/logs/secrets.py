"""What no line of the log may tell, whoever wrote it and whatever it came from.

Nothing of ours logs a secret. But an exception of a library may quote the address that it could not connect to, and a
debug line the headers that it has sent.
"""

import re
from collections.abc import Iterable

SHORTEST = 6  # letters: replacing less would garble words that have nothing to do with it
_NAMES = "password|passwd|passphrase|secret|token|api_?key"
_PATTERNS = (
    (re.compile(r"\bgps_[A-Za-z0-9_-]+"), "gps_…"),  # our tokens
    (re.compile(r"(?i)(authorization\W{1,5}(?:b['\"])?(?:(?:token|bearer|basic|digest)\s+)?)[^\s'\",]+"), r"\1…"),
    (re.compile(r"(?i)(cookie\W{1,5}).*"), r"\1…"),
    (re.compile(r"(://[^\s/:@]*:)[^\s/@]+@"), r"\1…@"),
    (re.compile(rf"(?i)\b((?:[a-z]+_)*(?:{_NAMES})['\"]?\s?[=:]\s?['\"]?)[^\s'\",;&]+"), r"\1…"),
)  # fmt: skip


class Scrubber:
    """`known` are this process's own secrets, such as the password of its database."""

    def __init__(self, known: Iterable[str | None]) -> None:
        self._known = sorted({each for each in known if each and len(each) >= SHORTEST}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, "…")
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text
