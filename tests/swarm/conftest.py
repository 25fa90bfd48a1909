from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.swarm_lab import Lab, lab, why_no_lab

FIVE, TWO, THREE = 5120, 2048, 3072  # MiB of card 0 on each of the three nodes


@pytest.fixture(scope="module")
def swarm() -> Iterator[Lab]:
    """Three nodes with one card each, of different sizes; all are managers."""
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with lab([{"gpu0_mib": FIVE}, {"gpu0_mib": TWO}, {"gpu0_mib": THREE}]) as made:
        yield made
