"""Kubernetes' way to write an amount: `4Gi`, `1500M`, `1e9`, `0.5Gi` (k8s.io/apimachinery/pkg/api/resource)."""

import re
from decimal import ROUND_CEILING, Decimal

MIB = 1 << 20

_FORM = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]{1,2}|[KMGTPE]i|[numkMGTPE])?")
_SUFFIXES = {
    "": Decimal(1),
    **{each: Decimal(1000) ** power for each, power in zip("numkMGTPE", (-3, -2, -1, 1, 2, 3, 4, 5, 6), strict=True)},
    **{f"{each}i": Decimal(1024) ** power for power, each in enumerate("KMGTPE", 1)},
}


def read(text: object) -> int:
    """Bytes, rounded up as Kubernetes rounds. Raises ValueError with a sentence."""
    match = _FORM.fullmatch(str(text)) if isinstance(text, str | int) and not isinstance(text, bool) else None
    if match is None or len(match[1]) > 40:
        raise ValueError(f'"{str(text)[:64]}" is not an amount of memory such as 4Gi')
    suffix = match[2] or ""
    scale = Decimal(f"1{suffix}") if suffix[:1] in ("e", "E") and suffix[1:] else _SUFFIXES[suffix]
    return int((Decimal(match[1]) * scale).to_integral_value(ROUND_CEILING))


def write(size: int) -> str:
    """So many bytes, rounded down to whole MiB."""
    return f"{size // MIB}Mi"
