"""Taking over: what a new scheduler finds living is known, as it is, before any socket is open.

What is found is what the engine has and the rows mean (intents.py); that a start was recorded is not asked for.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from datetime import datetime
from functools import partial

from scheduler import clock, proc
from scheduler.containers.registry import Containers, as_live_container
from scheduler.sessions import lease_pages
from scheduler.sessions.live_containers import LiveContainer, Program, Session, program_of
from scheduler.sessions.looks import detached_thread
from scheduler.sessions.processes import Sessions
from scheduler.shared import SharedParts
from web.models import Container, Swap

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # at most for the map of one process, or of a batch
UNSEEN_FOR = 20.0  # seconds after a start in which who could not be looked at is not said to be past the shim
MAPS_BYTES = 16 << 20  # of one process: by default 65,530 mappings, a line of a hundred characters each
BATCH = 64
Found = Callable[[LiveContainer, Session], None]


class TakeOver:
    def __init__(self, shared: SharedParts, containers: Containers, sessions: Sessions) -> None:
        self._engine, self._gpus, self._store = shared.engine, shared.gpus, shared.store
        self._broker, self._server = shared.broker, shared.server
        self._containers, self._sessions = containers, sessions

    async def run(self) -> None:
        """Once, after a start. Raises EngineAway or DatabaseError."""
        used = await self._store.records.last_used()
        present = {status.id: status.engine_id for status in await self._engine.statuses()}
        launching = set()  # to come still, or under way: its program may look for the socket already
        rows = await self._store.records.living()
        await self._store.learn(rows, used)
        self._store.clocks.forget_all_but([str(row.pk) for row in rows])
        for row in rows:
            engine_id = present.get(str(row.pk)) or row.engine_id  # what the engine says counts: a row can name any
            if engine_id or row.mount:  # what Docker has mounted for a start has its claims, and may start at any time
                self._container(row, engine_id, used.get(str(row.pk), {}))
            else:
                launching.add(str(row.pk))
        await self._processes()
        for live in self._broker.live_containers.values():
            if live.swap == Swap.OUT:
                self._broker.swapped_out(live)
        await self._containers.reconcile()
        living = {live.id for live in self._containers.all() if not live.finished}
        self._server.clear(living | launching)

    def open_sockets(self) -> None:
        """From here on they are decided on: what the cards have for them is to be known."""
        self._broker.tell(self._broker.waits.expected())
        for live in list(self._broker.live_containers.values()):
            if not live.finished:
                self._server.listen(live.id)

    def _container(self, row: Container, engine_id: str, reported: dict[str, int]) -> None:
        claims = [claim for claim in row.claims.all() if claim.gpu.uuid in self._gpus.cards]
        # A claim may be ahead of the core: a larger quota is promised first, and its command is still open. The row has
        # the quota that the core accepted. Only a pod's row has none, whose claims differ by card: its claims do not
        # change before its row does, as no change may go beyond the least of them (kubernetes/driver.py).
        live = as_live_container(row, {claim.gpu.uuid: row.gpu_memory or claim.quota for claim in claims})
        self._store.clocks.begin(live.id, row.clock_ahead, _last_stamp(row))
        live.engine_id = engine_id
        live.started_at = row.started_at
        live.swap, live.gave_way, live.card_move = row.swap, row.gave_way, row.card_move
        live.stuck = row.swap in (Swap.LEAVING, Swap.COMING)  # until that has its end
        live.no_turns = row.no_turns
        live.cannot_move, live.not_restored = row.cannot_move, row.not_restored
        live.paused = row.paused_at is not None
        live.idle = row.idle_since is not None
        live.killed = row.kill_requested_at is not None
        live.reason, live.clock_ahead = row.reason, row.clock_ahead
        live.peak = {claim.gpu.uuid: claim.peak for claim in claims}
        live.computed = {claim.gpu.uuid: (claim.had, claim.due, claim.held_back) for claim in claims}
        live.reported = reported  # so that what came back while there was no scheduler is reported, too
        live.suspended_before = row.suspended_seconds
        if row.suspended_since is not None:
            live.waited_since = live.suspended_since = self._store.monotonic(live.id, row.suspended_since)
            live.wait_recorded = True
        if refused := self._containers.admit(row, live, running=True):
            log.error("container %s gets no more memory, but can be killed: %s", live, refused.explanation)
            self._containers.keep_stray(live)

    async def look_again(self, found: Found) -> bool:
        """At those that could not be looked at, as this machine was busy, or as they keep us from it. Whether all of
        them have been."""
        unseen, until = self._broker.unseen, clock.monotonic() + UNSEEN_FOR
        while unseen and clock.monotonic() < until:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look(sorted(unseen), found)
        all_seen = not unseen
        unseen.clear()
        return all_seen

    async def _processes(self) -> None:
        """All of this host that have a page of ours. One that keeps us from looking is not waited for."""
        pids = sorted(proc.pids())
        for start in range(0, len(pids), BATCH):
            await self._look(pids[start : start + BATCH])

    async def _look(self, pids: list[int], found: Found = lambda live, session: None) -> None:
        """`found` is called with each that is taken over."""
        missed: set[int] = set()
        for pid, container in await self._holders(pids, missed):
            # What it runs is asked before the page: that is gone if it runs something else by then.
            if (live := self._broker.live_containers.get(container)) and (program := program_of(pid)):
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        page = await detached_thread(partial(lease_pages.find, pid, container), too_late=_close)
                except TimeoutError:
                    missed.add(pid)
                    continue
                if page is not None and (session := self._process(live, pid, program, page)):
                    found(live, session)
        # Only now, so that a measurement cannot miss a process: it is in one set or the other.
        self._broker.unseen |= missed
        self._broker.unseen -= set(pids) - missed

    async def _holders(self, pids: list[int], missed: set[int]) -> list[tuple[int, str]]:
        """Process and container; each process by itself, side by side, if the look at all of them takes too long.

        Who cannot be looked at even so is added to `missed`.
        """
        look = partial(lease_pages.holders, pids, MAPS_BYTES)
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await detached_thread(look)
        except TimeoutError:
            if len(pids) > 1:
                looks = await asyncio.gather(*(self._holders([pid], missed) for pid in pids))
                return [found for each in looks for found in each]
            log.warning("process %d cannot be looked at: what it holds, if anything, is not known", pids[0])
            missed.add(pids[0])
            return []

    def _process(self, live: LiveContainer, pid: int, program: Program, fd: int) -> Session | None:
        """`fd` leads to its page, and is closed."""
        try:
            # The name of a page says whose it is; the engine knows.
            if not self._engine.owns(live.engine_id, pid) or self._sessions.knows(pid, program):
                return None
            pidfd = proc.pidfd(pid)
            try:
                page = lease_pages.take_over(fd, live.quota, live.card_move)
            except BaseException:
                os.close(pidfd)
                raise
            return self._sessions.open(live, pid, program, pidfd, page, taken_over=True)
        except (lease_pages.BadPage, ProcessLookupError) as error:
            log.warning("process %d: its lease page was not taken over: %s", pid, error)
            return None
        finally:
            os.close(fd)


def _last_stamp(row: Container) -> datetime | None:
    """The last one in its row that its own clock gave."""
    stamps = row.started_at, row.paused_at, row.swapped_at, row.suspended_since, row.idle_since, row.kill_requested_at
    return max((stamp for stamp in stamps if stamp is not None), default=None)


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
