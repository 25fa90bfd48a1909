"""Where the memory of a container is, and how it gets from there to another place: one table for everybody.

             MoveBegun                  SwappedOut
    here ───────────────▶ leaving ───────────────────▶ out ◀──── SwappedOut (called off, or found so) ──── any
     ▲ ◀────────────────────┘                           │ SwapInRequested
     │      NotMoved                                    ▼
     └─────────────── coming ◀─────────────────────  returning
        CameBack,                all is lent again
        NotMoved

What an event does not name here, it does not move. Only here and out last; the rest ends by itself, or by a kill.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum, auto

from scheduler.core.effects import Restore
from scheduler.core.events import CameBack, MoveBegun, NotMoved, SwapInRequested, SwappedOut
from scheduler.core.state import Container, Stage, State

AFTER: Mapping[type, Mapping[Stage, Stage]] = {
    MoveBegun: {Stage.HERE: Stage.LEAVING},
    SwappedOut: dict.fromkeys(Stage, Stage.OUT),
    SwapInRequested: {Stage.OUT: Stage.RETURNING},
    Restore: {Stage.RETURNING: Stage.COMING},
    CameBack: {Stage.COMING: Stage.HERE},
    NotMoved: {Stage.LEAVING: Stage.HERE, Stage.COMING: Stage.HERE},
}


class Action(Enum):
    """What the scheduler does next about a container whose move is begun and that it has not in hand (`next_step`)."""

    NOTHING = auto()
    WAIT = auto()  # and look again later
    ASK_BACK = auto()  # `SwapInRequested`
    CALL_OFF = auto()  # `SwappedOut`
    BRING_BACK = auto()  # all of it that is away or stopped
    LEND_TO_OTHERS = auto()  # its place, if none of it is on a card


ANY = tuple(Stage)

# Where it is by its row, what else is so, and what is done: the first that holds.
STEPS: tuple[tuple[Collection[Stage], Mapping[str, bool], Action], ...] = (
    (ANY, {"over": True}, Action.NOTHING),
    ((Stage.OUT,), {"killed": True}, Action.NOTHING),  # it has no use of its memory any more
    ((Stage.OUT,), {"lent": True, "held": True}, Action.CALL_OFF),  # it is asked back when it goes on
    ((Stage.OUT,), {"lent": True}, Action.BRING_BACK),
    ((Stage.OUT,), {"held": False, "wanted": True}, Action.ASK_BACK),
    ((Stage.OUT,), {}, Action.NOTHING),
    ((Stage.HERE,), {"undone": False}, Action.NOTHING),
    (ANY, {"given_up": True, "unseen": True}, Action.WAIT),  # an unseen process may be one of its own
    (ANY, {"given_up": True}, Action.LEND_TO_OTHERS),
    (ANY, {"frozen": True}, Action.WAIT),  # it answers nothing, and others would wait with it
    (ANY, {}, Action.BRING_BACK),
)


def next_step(stage: Stage, **found: bool) -> Action:
    """`stage`: by its row. `found`: `over`, `killed`, `frozen`, `held` (frozen, to be frozen, or stuck in a move),
    `lent` (all that was out), `wanted` (not out for being idle), `given_up` (the driver refuses to bring it back),
    `undone` (processes are stopped or its limit is raised), `unseen` (processes that the take-over could not look at).
    """
    return next(do for where, facts, do in STEPS if stage in where and facts.items() <= found.items())


def moved(container: Container, by: type) -> Container:
    stage = AFTER[by].get(container.stage, container.stage)
    return container if stage is container.stage else replace(container, stage=stage)


def is_moving(state: State) -> bool:
    """Whether the memory of a container is on its way. One moves at a time."""
    return any(each.stage and each.stage in (Stage.LEAVING, Stage.COMING) for each in state.containers.values())


def size(container: Container) -> int:
    """Bytes that a move of it transfers."""
    return sum(container.leased.values())


def host_room(state: State) -> float:
    """Bytes of host memory that containers may still be moved to."""
    return state.preemption.memory - sum(sum(each.out.values()) for each in state.containers.values())
