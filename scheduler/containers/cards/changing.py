"""A container that is out comes back on another card: what has to be so for that, and what follows the move.

It is a move to host memory and back (swapping.py) with another card between them. Once its memory is out, its claim is
on the new card, and that is durable before anything follows (`card_move` of its row says whence and whither until it is
there); then its pages, its leases and the core follow (`Sessions.reassign`), and it waits for room there like anybody
who comes back. Its device nodes follow before the driver restores it. If the driver refuses, all goes back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from django.db import DatabaseError

from scheduler.card.helper import CardError, State, Why
from scheduler.containers.forecasts import idle
from scheduler.containers.moving import stopped
from scheduler.core import safety
from scheduler.core.admission import size
from scheduler.core.effects import Relocate
from scheduler.core.events import NotMoved, StaysOnCard
from scheduler.core.state import Stage
from scheduler.engines.base import EngineError
from scheduler.sessions.live_containers import LiveContainer
from scheduler.shared import SharedParts
from web.errors import Problem
from web.services.placement.policies import able_cards, in_service

log = logging.getLogger(__name__)

PATIENCE = 60.0  # seconds for which a person waits to see how the move went
AGAIN = 1.0  # seconds until the database is asked again that did not take a step
REFUSED = (Why.CANNOT, Why.NO_ROOM, Why.FAILED, Why.NOT_THERE)  # by the driver, of a process that is out
PASSES = (Why.NO_ROOM,)  # of these, what may be otherwise the next time: a foreign program was faster
Leave = Callable[[LiveContainer, str, str, str], Awaitable[None]]
Reassign = Callable[[LiveContainer, Mapping[str, str], str, str], None]


class CardChange:
    """`reassign`: of `Sessions`."""

    def __init__(self, shared: SharedParts, reassign: Reassign) -> None:
        self._gpus, self._engine, self._broker, self._store = shared.gpus, shared.engine, shared.broker, shared.store
        self._reassign = reassign
        self.refused = False  # the driver has: nobody is moved for others any more
        self._awaited: dict[str, asyncio.Future[str]] = {}  # why it is not there; "": it is

    def require(self, live: LiveContainer, old: str, new: str) -> None:
        """Raises Problem if this container cannot go from one card to the other now."""
        cards, state = self._gpus.cards, self._broker.state
        if new not in cards:
            raise Problem("unknown_gpu", "There is no such GPU on its host.", 400, "gpu")
        if old not in live.quota or new in live.quota:
            where = "is there already" if new in live.quota else "has no quota on the GPU that it is to leave"
            raise Problem("not_movable", f'"{live.name}" {where}.', 409, "gpu")
        if live.card_stays:
            raise Problem("not_movable", live.card_stays, 409)
        if cards[new].name != cards[old].name:
            message = f"GPU {cards[new].index} is another chip than GPU {cards[old].index}: memory moves between like."
            raise Problem("not_movable", message, 409, "gpu")
        if live.paused and not live.is_out:
            raise Problem("paused", f'"{live.name}" is paused, and cannot be moved. Resume it first.', 409)
        in_service(able_cards([state.gpus[new]], live.quota[old], 1), 1)
        known = state.containers.get(live.id)
        guaranteed = known is not None and known.guaranteed
        needed = live.quota[old] if guaranteed else live.granted(old)
        free = safety.free(state, new) + (0 if guaranteed else idle(self._broker, new))
        if needed > free:
            message = f"It needs {size(needed)} of GPU {cards[new].index}, of which {size(max(0, free))} is free."
            raise Problem("no_room", message, 409, "gpu")

    async def relocate(self, move: Relocate, leave: Leave) -> None:
        """For somebody who waits; a move that was not begun is reported to the core."""
        live = self._broker.live_containers.get(move.container)
        if live is None:
            return  # it has ended, and is forgotten
        name = self._broker.names.get(move.whom, "")
        try:
            if live.is_held:
                raise Problem("paused", "It was paused meanwhile.", 409)
            await leave(live, move.old, move.new, f'It makes room for "{name}".' if move.whom != live.id else "")
        except (Problem, OSError) as problem:
            if not (live.finished or live.killed):
                log.warning("container %s was not moved to another GPU: %s", live, problem)
                self._store.event("not_moved", live.id, detail=f'It was to make room for "{name}". {problem}'[:500])
            core = self._broker.state.containers.get(live.id)
            if core is not None and core.stage is Stage.LEAVING:
                self._broker.tell(NotMoved(self._broker.now(), live.id))

    async def assign(self, live: LiveContainer, old: str, new: str) -> None:
        """It is out, and comes back on this card instead. Waits for the database as long as that takes no step."""
        came = live.card_move.get("from", old)
        card_move = {} if came == new else {"from": came, "to": new}
        while True:
            try:
                await self._store.promises.move(live.id, old, new, card_move)
            except DatabaseError as error:
                log.error("container %s: its move to another GPU waits for the database: %s", live, error)
                await asyncio.sleep(AGAIN)
            else:
                break
        self._reassign(live, card_move, old, new)

    async def before_restore(self, live: LiveContainer) -> list[CardError]:
        """Its new card is within its reach; else why not."""
        try:
            if live.card_move:
                await self._engine.give_card(live.engine_id, live.card_move["to"])
        except EngineError as error:
            return [CardError(Why.CANNOT, 0, str(error), State.CHECKPOINTED)]
        return []

    async def after_restore(self, live: LiveContainer, seconds: float) -> None:
        """The card that it had is out of its reach again."""
        if not (cards := live.card_move):
            return
        live.card_move = {}
        self._arrived(live)
        index = {uuid: card.index for uuid, card in self._gpus.cards.items()}
        detail = (
            f"From GPU {index.get(cards['from'], '?')} to GPU {index[cards['to']]}. It came back in {seconds:.2f} s."
        )
        self._store.event("card_changed", live.id, gpu=cards["to"], detail=detail)
        try:
            await self._engine.take_card(live.engine_id, cards["from"])
        except EngineError as error:
            log.error("container %s keeps a device node of a GPU that it has left: %s", live, error)

    def where_it_was(self, live: LiveContainer, error: CardError) -> Sequence[str]:
        """The driver or the engine refuses the new card: that one, and the one that it left. Empty: it is not that."""
        cards, out = live.card_move, [each for each in stopped(live) if not each.pairs]
        if out or not cards or error.why not in REFUSED or error.state is not State.CHECKPOINTED:
            return ()
        lasts = error.pid and error.why not in PASSES  # else it was no process's: the engine did not answer
        why = f"It {'cannot be' if lasts else 'was not'} moved to another GPU: {error}"[:500]
        log.warning("container %s: %s", live, why)
        self._store.event("not_moved", live.id, gpu=cards["to"], detail=why)
        if lasts:
            live.card_stays, self.refused = why, True
            self._broker.tell(StaysOnCard(self._broker.now(), live.id))
        self._arrived(live, why)
        return cards["to"], cards["from"]

    async def to_card(self, live: LiveContainer, old: str, new: str, why: str, leave: Leave) -> str:
        """For a person: returns a sentence once it is there, or has to wait for room. Raises Problem."""
        # A scheduler that was killed over this may have done it: its next one is asked again.
        done = new in live.quota and (old == new or old not in live.quota)
        if not done:
            self.require(live, old, new)
        name = f"GPU {self._gpus.cards[new].index}"
        if done and not live.swap:
            return f"It is on {name}."
        there = self._awaited.setdefault(live.id, asyncio.get_running_loop().create_future())
        if not done:
            await leave(live, old, new, why)
        if live.is_held:
            return f"It is in host memory, and comes to {name} when it is resumed."
        given_up = self._broker.now() + PATIENCE
        while not (there.done() or live.finished) and self._broker.now() < given_up:
            await asyncio.wait([there], timeout=AGAIN)
        if live.finished:
            self._awaited.pop(live.id, None)
            raise Problem("container_ended", f'"{live.name}" has ended.', 409)
        if there.done() and (why := there.result()):
            raise Problem("not_movable" if live.card_stays else "not_moved", why, 409)
        return f"It is on {name}." if there.done() else f"It is in host memory, and comes to {name} when there is room."

    def _arrived(self, live: LiveContainer, why_not: str = "") -> None:
        if there := self._awaited.pop(live.id, None):
            there.set_result(why_not)
