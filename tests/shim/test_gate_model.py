"""The gate, in every order of its steps and with a scheduler that may die: shim/gate/gate.h says what must hold.

Two ranks of one communicator that begin operations, and a scheduler that stops them together: it asks, brings both to
the largest number, and locks them. A step is one access of a page or one call of the driver. A rank's card is busy as
long as it has given what the other has not. A lock comes to its end only where it is not, and holds back what is given.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

MOST = 2  # operations that a rank begins


class Rank(NamedTuple):
    at: str = "runs"
    begun: int = 0
    given: int = 0
    wanted: int = 0
    limit: int = 0
    asked: bool = False
    locked: bool = False


class World(NamedTuple):
    ranks: tuple[Rank, ...] = (Rank(), Rank())
    at: str = "rest"
    next: int = 0  # the rank whose turn it is in the scheduler's step
    most: int = 0  # what this look has found so far
    same: bool = True
    kills: int = 1
    stops: int = 2
    broken: str = ""


def change(world: World, index: int, at: str = "", **changes: object) -> World:
    rank = world.ranks[index]._replace(**changes)  # type: ignore[arg-type]
    if at:
        rank = rank._replace(at=at)
    return world._replace(ranks=(*world.ranks[:index], rank, *world.ranks[index + 1 :]))


def process(world: World, index: int) -> Iterator[World]:
    rank = world.ranks[index]
    match rank.at:
        case "runs" if rank.begun < MOST:
            if world.broken == "look first":
                yield change(world, index, "begin late" if not rank.asked else "hold: wanted")
            else:
                yield change(world, index, "look", begun=rank.begun + 1)
        case "begin late":
            yield change(world, index, "give", begun=rank.begun + 1)
        case "look":  # gate_try: asked, then the limit
            allowed = not rank.asked or rank.begun <= rank.limit
            yield change(world, index, "give" if allowed else "hold: begun")
        case "hold: begun":
            yield change(world, index, "hold: wanted", begun=rank.begun - 1)
        case "hold: wanted":
            yield change(world, index, "held", wanted=rank.begun + 1)
        case "held" if not rank.asked or rank.wanted <= rank.limit:
            yield change(world, index, "runs")
        case "held" if world.kills == 0 and world.at == "dead":  # a second has passed
            yield change(world, index, "goes on")
        case "goes on":
            yield change(world, index, "give", begun=rank.begun + 1)
        case "give" if not rank.locked:  # NCCL's call: a locked process's is held back
            yield change(world, index, "given")
        case "given":
            yield change(world, index, "runs", given=rank.given + 1)


def scheduler(world: World) -> Iterator[World]:
    count, rank = len(world.ranks), world.ranks[world.next]
    following = world._replace(next=(world.next + 1) % count)
    last = world.next == count - 1
    match world.at:
        case "rest" if world.stops:
            yield world._replace(at="ask", stops=world.stops - 1, next=0)
        case "ask":
            yield change(following, world.next, asked=True)._replace(at="look" if last else "ask", most=0)
        case "look":
            most = max(world.most, rank.begun, rank.limit)
            yield following._replace(most=most, at="limit" if last else "look", same=True)
        case "limit":
            ended = rank.given if world.broken != "begun is enough" else rank.begun
            same = world.same and rank.limit == world.most == ended and rank.begun == world.most
            after = change(following, world.next, limit=world.most)._replace(same=same)
            yield after._replace(at=("lock" if same else "look") if last else "limit", most=0 if last else world.most)
        case "lock":
            yield change(following, world.next, locked=True)._replace(at="let go" if last else "lock")
        case "let go":
            yield change(following, world.next, asked=False)._replace(at="unlock" if last else "let go")
        case "unlock":
            yield change(following, world.next, locked=False)._replace(at="rest" if last else "unlock")


def steps(world: World) -> Iterator[World]:
    for index in range(len(world.ranks)):
        yield from process(world, index)
    if world.at != "dead":
        yield from scheduler(world)
    if world.kills and world.at != "rest":
        # Its locks are undone by the guardian; nobody opens the gate.
        unlocked = tuple(rank._replace(locked=False) for rank in world.ranks)
        yield world._replace(kills=world.kills - 1, at="dead", ranks=unlocked)


def on_the_card(rank: Rank) -> int:
    return rank.given + (rank.at == "given")


def explore(first: World) -> int:
    seen, open_ = {first}, [first]
    while open_:
        world = open_.pop()
        cards = {on_the_card(rank) for rank in world.ranks}
        if world.at == "lock":  # which never comes to its end on a card that waits for what a locked one has not given
            assert len(cards) == 1, f"one is locked before it has given what another waits for: {world}"
        after = list(steps(world))
        stuck = not after and any(rank.begun < MOST for rank in world.ranks)
        assert not stuck, f"somebody is left at the gate: {world}"
        new = set(after) - seen
        seen |= new
        open_ += new
    return len(seen)


def test_all_are_locked_having_given_the_same_and_nobody_is_left_at_the_gate():
    assert explore(World()) > 1000


@pytest.mark.parametrize("step", ["look first", "begun is enough"])
def test_a_step_that_is_left_out_is_found_out(step):
    with pytest.raises(AssertionError, match="one is locked before"):
        explore(World(broken=step))
