"""A move and those who ask their card meanwhile, in every order and with every death: shim/lease.h says what must hold.

Two threads of one process, and a scheduler that moves its memory away and back, and may be killed after any step; the
next one begins where the driver and the row say that it is. A step is one access of the page or one call of the driver.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest


class World(NamedTuple):
    threads: tuple[str, ...] = ("runs", "runs")
    at: str = "rest"
    inside: int = 0
    moving: bool = False
    locked: bool = False
    away: bool = False
    row: bool = False  # the container's row says that it is being moved
    kills: int = 2
    moves: int = 2
    broken: str = ""


def thread(world: World, index: int) -> Iterator[World]:
    def then(at: str, **changes: object) -> World:
        threads = tuple(at if number == index else each for number, each in enumerate(world.threads))
        return world._replace(threads=threads, **changes)

    match world.threads[index]:
        case "runs":
            yield then("lease_enter: load moving first" if world.broken == "look first" else "lease_enter: inside +=")
        case "lease_enter: load moving first":
            yield then("runs" if world.moving else "lease_enter: inside +=")
        case "lease_enter: inside +=":
            looked = world.broken == "look first"
            yield then("asks" if looked else "lease_enter: load moving", inside=world.inside + 1)
        case "lease_enter: load moving":
            yield then("lease_leave: undone" if world.moving else "asks")
        case "asks":  # the driver's call, which no lock holds back
            yield then("lease_leave: inside -=")
        case "lease_leave: undone":
            yield then("in the driver", inside=world.inside - 1)
        case "lease_leave: inside -=":
            yield then("runs", inside=world.inside - 1)
        case "in the driver" if not world.locked:  # cuCtxGetFlags, which a lock does hold back
            yield then("runs")


def scheduler(world: World) -> Iterator[World]:
    match world.at:
        case "rest":
            if world.row:  # whoever took over brings it back, or on
                yield world._replace(at="restore" if world.away else "unlock")
            elif world.moves:
                yield world._replace(moves=world.moves - 1, row=True, at="lease_hold: moving = 1")
        case "lease_hold: moving = 1":
            yield world._replace(moving=True, at="lock")
        case "lock":
            yield world._replace(locked=True, at="checkpoint" if world.broken == "no look" else "lease_inside")
        case "lease_inside":
            if not world.inside:
                yield world._replace(at="checkpoint")
        case "checkpoint":
            yield world._replace(away=True, at="restore")
        case "restore":
            early = world.broken == "let in first"
            yield world._replace(away=world.away and early, moving=world.moving and not early, at="unlock")
        case "unlock":
            yield world._replace(away=False, locked=False, at="lease_hold: moving = 0")
        case "lease_hold: moving = 0":
            yield world._replace(moving=False, row=False, at="rest")


def steps(world: World) -> Iterator[World]:
    for index in range(len(world.threads)):
        yield from thread(world, index)
    yield from scheduler(world)
    if world.kills:
        yield world._replace(kills=world.kills - 1, at="rest")


def explore(first: World) -> int:
    seen, open_ = {first}, [first]
    while open_:
        world = open_.pop()
        assert not (world.away and "asks" in world.threads), f"it asks while its memory is away: {world}"
        after = list(steps(world))
        assert after, f"nothing can happen any more: {world}"
        new = set(after) - seen
        seen |= new
        open_ += new
    return len(seen)


def test_nobody_asks_while_the_memory_is_away_whoever_dies_whenever():
    assert explore(World()) > 1000


@pytest.mark.parametrize("step", ["look first", "no look", "let in first"])
def test_a_step_that_is_left_out_is_found_out(step):
    with pytest.raises(AssertionError, match="it asks while"):
        explore(World(broken=step))
