"""The steps of a lease, in every order and with every death: shim/lease.h says what must hold, lease_model.py how."""

import pytest

from tests.shim.lease_explorer import Broken, explore
from tests.shim.lease_world import Thread, World

TWICE = (Thread(calls=2), Thread())
ONE = (Thread(calls=2),)
LEASED = World(capacity=2, sizes=(1, 1), limit=2, bound=2, leased=2)

WORLDS = {
    "a scheduler and the process die": World(frees=0, mores=0),
    "a neighbour waits while the scheduler dies": World(mores=0, deaths=0),
    "the card shows more than was charged": World(frees=0, deaths=0),
    "a neighbour waits for what the card shows more": World(deaths=0, kills=0),
    "two schedulers die": World(frees=0, mores=0, deaths=0, kills=2),
    "a thread allocates again": World(threads=TWICE, sizes=(1, 1), capacity=2, frees=0, mores=0, deaths=0),
    "somebody looks at the peak": World(watched=True, looks=2, frees=0, mores=0, deaths=0, kills=0),
    "and again after a second free": LEASED._replace(
        watched=True, looks=2, threads=TWICE, frees=0, mores=0, deaths=0, kills=0
    ),
    "a scheduler that looks at the peak dies": World(watched=True, looks=2, threads=ONE, frees=0, mores=0, deaths=0),
    "both fit only one after the other": World(capacity=2, mores=0, deaths=0),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
def test_no_order_and_no_death_loses_a_byte_or_gives_one_twice(world):
    print(f"{explore(world)} states")


DIES = "a neighbour waits while the scheduler dies"
LOOKS = "somebody looks at the peak"
BOTH = "a scheduler and the process die"

# What must not be left out, or done in another order, and where it shows.
BROKEN = {
    "one look": DIES,  # lease_reserve does not look at the limit again
    "taken back without a look": DIES,  # lease_take_back does not look at what is taken
    "limit before bound": DIES,  # lease_extend
    "settled in one step": DIES,  # lease_settle does not close the lease first
    "settled at what is taken": DIES,  # and not at the bound, where that is less
    "what was granted is forgotten": BOTH,  # by the next scheduler, until it is accepted
    "sent first": BOTH,  # Broker._granted: before the page says so
    "answered before accepted": BOTH,  # client.c, answer
    "not sent again": BOTH,  # Lease.said_hello
    "sent at take-over": BOTH,  # what is unheard is counted before the process has read all that has arrived
    "pressure after": DIES,  # Broker._press after the take-back
    "pressure first": DIES,  # lease_release looks at the flag before it moves `taken`
    "accepted read late": LOOKS,  # lease_release reads it after it has moved `taken`
    "look read late": "and again after a second free",  # lease_release reads it after `peak`
    "noted without a look": LOOKS,  # note_peak does not compare before it swaps
    "seen unread": LOOKS,  # lease_take_peak says that it has seen what it has not read
    "asked without a look": "a neighbour waits for what the card shows more",  # Broker.need does not collect
}


@pytest.mark.parametrize(("step", "world"), BROKEN.items())
def test_step_that_is_broken_is_found_out(step, world):
    with pytest.raises(Broken):
        explore(WORLDS[world]._replace(broken=step))
