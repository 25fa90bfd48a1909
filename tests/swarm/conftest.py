from collections.abc import Iterator

import pytest

from tests.support.appliance import Appliance, until
from tests.support.swarm_lab import Lab, lab, why_no_lab
from tests.swarm.appliance import in_a_swarm, knows_the_plugin

FIVE, TWO, THREE = 5120, 2048, 3072  # MiB of card 0 on each of the three nodes


@pytest.fixture(scope="module")
def swarm() -> Iterator[Lab]:
    """Three nodes with one card each, of different sizes; all are managers."""
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with lab([{"gpu0_mib": FIVE}, {"gpu0_mib": TWO}, {"gpu0_mib": THREE}]) as made:
        yield made


@pytest.fixture(scope="package")
def of_one() -> Iterator[tuple[Appliance, Lab]]:
    """A Swarm of one node, with an appliance; each test leaves nothing behind."""
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with in_a_swarm({"gpu0_mib": 1000}) as (appliance, swarm):
        until(lambda: knows_the_plugin(swarm))
        yield appliance, swarm
