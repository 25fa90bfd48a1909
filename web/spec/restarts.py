"""When what was launched is begun again, as Docker's --restart has it: `on-failure`, `on-failure:3`, `always`.

`no` is nothing, and kept as the empty text. `unless-stopped` is `always`: what is stopped here was killed, and that is
its end in any case.
"""

import re
from dataclasses import dataclass

from rest_framework import serializers

_KNOWN = re.compile(r"no|always|unless-stopped|on-failure(?::(?P<most>[1-9]\d{0,3}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Restart:
    """`after_success`: also where it ended with 0. `most`: how many times it is begun again; None: without end."""

    after_success: bool
    most: int | None


def check(text: str) -> str:
    """In its normal form."""
    if (found := _KNOWN.fullmatch(text.strip())) is None:
        raise serializers.ValidationError(
            f"{text[:40]!r} is none of no, on-failure, on-failure:3 (three times at most), always and unless-stopped."
        )
    return {"no": "", "unless-stopped": "always"}.get(found[0], found[0])


def parse(text: str) -> Restart | None:
    """Of the normal form; None: it is not begun again."""
    kind, _, most = text.partition(":")
    return Restart(kind == "always", int(most) if most else None) if text else None
