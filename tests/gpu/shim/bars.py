"""The bars of what the shim may cost, as issue 3 sets them: which figure of a row has to be what."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]

_BARS: list[tuple[str, str, Callable[[Row], bool]]] = [
    (r"malloc [\d.]+ [KMG]iB", "ratio ≤ 1.02", lambda row: row["ratio"] <= 1.02),
    (r"(m?alloc|free) 4 KiB inside", "≤ + 60 ns", lambda row: row["difference"] <= 60),
    (r"(malloc )?async pair 1 MiB", "≤ + 60 ns", lambda row: row["difference"] <= 60),
    (r"mem get info", "≤ 300 ns", lambda row: row["shimmed"] <= 300),
    (r"start (to first allocation|in a container)", "≤ + 2 ms", lambda row: row["difference"] <= 2),
    # The issue says "as native does": not clearly worse.
    (r".*threads to 1", "the interval reaches 0.95", lambda row: row["high"] >= 0.95),
    (
        r"small CNN|transformer block",
        "the interval has 1.0 and lies within ± 1 %",
        lambda row: 0.99 <= row["low"] <= 1 <= row["high"] <= 1.01,
    ),
]


def bar(name: str, row: Row) -> tuple[str, bool | None]:
    """The bar in words and whether it is met; no words and None where the issue sets none."""
    for pattern, words, met in _BARS:
        if re.fullmatch(pattern, name):
            return words, met(row)
    return "", None
