"""From Docker's mounting of a volume to a container that has its quota, and from its end to all being given back.

    Mount      the record and its claims are written; then the core has it, the socket is opened, and Docker answered
    its start  is seen in the engine, as that of every other container (registry.py), and so are its pauses and its end
    Unmount    is a reason to look at the engine at once, and nothing more: Docker unmounts after a copy, too

So there is nothing that a lost Unmount leaves for ever: the engine's list is the truth. What Docker has mounted and
never started (it was killed, or the start failed) is given back when Docker says so, was restarted, or takes too long.
Each mounting is a container of its own, with its own folder, also where several mount one volume.
"""

import asyncio
import hashlib
import logging
import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import DatabaseError, Error

from scheduler import clock
from scheduler.containers import placement
from scheduler.containers.registry import Containers, as_live_container, as_problem
from scheduler.containers.terminator import Terminator
from scheduler.engines.base import Condition, EngineError, MountUser, Run, Status
from scheduler.parts import Background
from scheduler.plugin.folders import Folders, take_tree_away
from scheduler.sessions.live_containers import LiveContainer
from scheduler.shared import SharedParts
from web.errors import Problem
from web.logs import ById
from web.models import Container
from web.services.mounting import Mounting, wanted
from web.services.placement import placement_ticket
from web.spec.inside.reserved import SOCKETS

log = logging.getLogger(__name__)

AT_ONCE = 16  # mountings that ask Docker and the database; the next wait
STARTS_WITHIN = 300.0  # seconds from its mount to a container's start, with the hooks that run before it
ASKED_AGAIN_WITHIN = 45.0  # seconds from a scheduler's start; Docker asks again for 30
ENDS_WITHIN = 2.0  # seconds that an earlier run of the same container may take to be seen as ended,
IS_KNOWN_WITHIN = 15.0  # and until its end is known everywhere, on a busy host
LOOK_EVERY = 2.0
LETS_GO = 0.5  # seconds after its Unmount in which Docker lets others look at a container
NEVER_STARTED = "Docker has mounted its volume, and did not start it."


@dataclass(slots=True)
class Known:
    """A container that a mounting has brought. `since`: when it was mounted last, in seconds since the epoch.

    `on`: Docker has not unmounted it. `engine_id`: of the only container that it can be; empty where there are several.
    `inherited`: by a scheduler that does not know whether Docker had the answer of the one before.
    """

    id: str
    volume: str
    since: float
    engine_id: str = ""
    on: bool = True
    inherited: bool = False


class Mounts:
    def __init__(self, shared: SharedParts, containers: Containers, ender: Terminator, folders: Folders) -> None:
        self._mountings, self._broker = shared.engine.mountings, shared.broker
        self._server, self._store = shared.server, shared.store
        self._containers, self._ender, self._folders = containers, ender, folders
        self._logs, self._copies = shared.home / "logs", shared.home / "copies"
        self._known: dict[str, Known] = {}  # Docker's ID of a mounting → whose it is
        self._under_way: dict[str, asyncio.Task[Path]] = {}
        self._unanswered: set[str] = set()  # mountings that the database may have, and whose commit had no answer
        self._places = asyncio.Semaphore(AT_ONCE)
        self._tasks = Background()
        self._began = clock.wall()
        if self._mountings is not None:
            self._mountings.report_to(self._found_out)

    # ---- over a restart ----

    async def expect(self) -> None:
        """Before the engine is asked what it has: which of it came by a volume. Raises DatabaseError."""
        rows = await self._store.volumes.mounted()
        last = {row.engine_id: row for row in rows}
        for row in rows:
            id_, since = str(row.pk), row.created_at.timestamp()
            if row.finished_at is None:
                self._known[row.mount] = Known(id_, row.volume, since, row.engine_id, inherited=True)
            elif last[row.engine_id] is not row:
                continue  # its container has been started again since
            self._expect(Run(id_, row.volume, since, self._log(id_), row.engine_id, memory=row.memory))
        if self._mountings is not None and self._known:
            try:
                await self._mountings.recall(min(known.since for known in self._known.values()))
            except EngineError as error:
                log.warning("how containers ended that Docker has removed meanwhile is not known: %s", error)
        if self._copies.exists():
            await take_tree_away(self._copies)

    def give_again(self) -> None:
        """After their sockets were opened anew."""
        for known in self._known.values():
            if self._lives(known.id):
                try:
                    self._folders.give(known.id, self._server.socket_dir(known.id))
                except OSError as error:
                    log.error("container %s: its programs do not find the socket: %s", ById(known.id), error)

    # ---- Docker's calls ----

    async def mount(self, volume: str, options: Mapping[str, str], mount: str) -> Path:
        """The folder for this mounting; the same again for the same. Raises Problem, DatabaseError or OSError."""
        if (task := self._under_way.get(mount)) is None:
            task = self._under_way[mount] = asyncio.create_task(self._mount(volume, options, mount))
            task.add_done_callback(lambda _: self._under_way.pop(mount, None))
        return await asyncio.shield(task)  # whoever asks again waits for the same

    async def _mount(self, volume: str, options: Mapping[str, str], mount: str) -> Path:
        known = self._known.get(mount)
        if known is not None and self._lives(known.id):
            known.on, known.inherited, known.since = True, False, clock.wall()
            if self._mountings is not None:
                self._mountings.again(known.id)
            return self._folders.of(known.id)
        async with self._places:
            running = [live for live in self._containers.all() if live.engine_id and not live.finished]
            users = await self._mountings.users(volume) if self._mountings else None
            if users is not None and not users:  # it is only being created: Docker copies what the image has there
                return self._copy_of(mount)
            _require_its_place(users or ())
            await self._earlier_have_ended(users or (), running)
            try:
                row = await self._record(volume, options, mount, users or ())
            except Error:
                self._unanswered.add(mount)
                raise
            self._unanswered.discard(mount)
            return self._begin(row, users or ())

    async def _record(
        self, volume: str, options: Mapping[str, str], mount: str, users: Sequence[MountUser]
    ) -> Container:
        """Durable from then on. Which of several users it is nobody knows yet."""
        if (brought := placement_ticket.parse(options)) is not None:
            return await self._store.volumes.accept(volume, mount, brought)
        user = users[0] if len(users) == 1 else None
        size, count, named = wanted(options, user.labels if user else {})
        asked = Mounting(
            id=uuid.uuid4(),
            mount=mount,
            name=user.name if user else volume,
            image=user.image[:255] if user else "",
            command=_words(user.command) if user else (),
            gpu_memory=size,
            gpus=placement.choose(self._broker.state, count, size, named),
        )
        return await self._store.volumes.mount(volume, options, asked)

    def _begin(self, row: Container, users: Sequence[MountUser]) -> Path:
        id_, now = str(row.pk), clock.wall()
        if self._containers.find(id_) is None:
            live = as_live_container(row, {claim.gpu.uuid: claim.quota for claim in row.claims.all()})
            if refused := self._containers.admit(row, live):
                over = clock.now()
                problem = as_problem(refused)
                self._store.container(id_, finished_at=over, removed_at=over, reason=problem.message[:500])
                raise problem
        engine_id = users[0].engine_id if len(users) == 1 else ""
        self._expect(Run(id_, row.volume, now, self._log(id_), engine_id))
        known = self._known[row.mount] = Known(id_, row.volume, now, engine_id)
        try:
            return self._folders.give(id_, self._server.listen(id_))
        except OSError:
            self._never_started(known)  # or it would have its quota for as long as we live
            raise

    async def unmount(self, mount: str) -> None:
        """At once: Docker lets nobody look at the container until it has its answer."""
        known = self._known.get(mount)
        if known is None:
            if (copy := self._copy_place(mount)).exists():
                await take_tree_away(copy)
        elif self._lives(known.id):
            known.on = False
            self._tasks.begin(self._look_at(known))
        else:
            del self._known[mount]

    def user_of(self, volume: str) -> str:
        """The name of a container that has this volume mounted now; empty if none has."""
        for known in self._known.values():
            live = self._containers.find(known.id) if known.volume == volume and known.on else None
            if live is not None and not live.finished:
                return live.name
        return ""

    def path(self, volume: str) -> str:
        """Where it was mounted last, of the mountings that there are; empty if there is none."""
        mounted = [known for known in self._known.values() if known.volume == volume and self._lives(known.id)]
        return str(self._folders.of(mounted[-1].id)) if mounted else ""

    # ---- what is seen ----

    def _found_out(self, id_: str, about: Mapping[str, Any]) -> None:
        if (live := self._containers.find(id_)) is not None:
            self._tasks.begin(self._write_down(live, about, begins=live.started_at is None))

    async def _write_down(self, live: LiveContainer, about: Mapping[str, Any], *, begins: bool) -> None:
        """What is written last says that the rest was done: who is killed before that does it all again."""
        while True:
            try:
                try:
                    await self._store.volumes.require_image(live.id, about["image"])
                except Problem as problem:
                    self._ender.want(live, reason=problem.message)
                    await self._store.durable()
                await self._store.volumes.known(live.id, about, begins=begins)
            except DatabaseError as error:
                log.warning("what Docker shows of container %s is written later: %s", live, error)
                await asyncio.sleep(LOOK_EVERY)
            else:
                return

    async def run(self) -> None:
        """Gives back what Docker has mounted and never started. Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self._look_at_all()

    async def close(self) -> None:
        """What was begun ends; `run` may have failed, and have begun again, meanwhile."""
        await self._tasks.close()

    async def _look_at_all(self) -> None:
        self._known = {mount: known for mount, known in self._known.items() if self._lives(known.id)}
        await self._call_off_unanswered()
        for id_ in self._folders.left_by({known.id for known in self._known.values()}):
            self._tasks.begin(self._folders.take_away(id_))
        broke_off = self._mountings.restarted_at if self._mountings else 0.0
        for known in list(self._known.values()):
            waited = clock.wall() - (self._began if known.inherited else known.since)
            if known.since < broke_off or waited > (ASKED_AGAIN_WITHIN if known.inherited else STARTS_WITHIN):
                await self._look_at(known, patience=0.0)

    async def _call_off_unanswered(self) -> None:
        """Docker's answer was that there is nothing, so there is to be nothing. One that asks again has its record."""
        while left := self._unanswered - self._under_way.keys():
            mount = left.pop()
            self._unanswered.discard(mount)
            try:
                await self._store.volumes.call_off(mount, NEVER_STARTED)
            except BaseException as error:
                self._unanswered.add(mount)
                if not isinstance(error, Error):
                    raise
                log.debug("what became of a mounting is asked later: %s", error)
                return

    async def _look_at(self, known: Known, patience: float = LETS_GO) -> None:
        """If it is not seen to have started by then, it will not."""
        live = self._containers.find(known.id)
        if live is None or (known.on and live.started_at is not None):
            return
        since = known.since
        await asyncio.sleep(patience)
        if self._mountings is not None:
            try:
                await self._mountings.look(known.id)
            except (EngineError, DatabaseError) as error:
                log.debug("container %s is looked at later: %s", live, error)
                return
        await asyncio.sleep(patience)  # another part reports what was seen
        if known.since == since:  # it was not mounted again meanwhile
            self._never_started(known)

    def _never_started(self, known: Known) -> None:
        live = self._containers.find(known.id)
        if live is None or live.started_at is not None or live.finished:
            return
        # It may have begun and ended before anybody had looked at it.
        if self._mountings is None or not self._mountings.stopped(known.id):
            self._containers.apply_status(Status(known.id, "", Condition.GONE, reason=NEVER_STARTED))
            if self._mountings is not None:
                self._mountings.forget(known.id)

    # ---- helpers ----

    async def _earlier_have_ended(self, users: Sequence[MountUser], running: Sequence[LiveContainer]) -> None:
        """One that is started again has ended: it is seen so in a moment, and what it held is free for it.

        `running`: those of which that was known before Docker was asked who does not run.
        """
        by_id = {user.engine_id: user for user in users}
        let_go = [known for known in self._known.values() if not known.on and known.engine_id in by_id]
        for known in let_go:
            if not by_id[known.engine_id].has_run:  # it was mounted only to copy what its image has there
                self._never_started(known)
        unseen = [live for known in let_go if (live := self._containers.find(known.id)) is not None]
        ending = [*unseen, *(live for live in running if live.engine_id in by_id)]
        if not await _all_end(ending, ENDS_WITHIN) and self._mountings is not None:
            for live in ending:  # Docker's list is word enough: it may let nobody look any closer at who begins again
                self._mountings.stopped(live.id)
            for known in let_go:
                self._never_started(known)
            await _all_end(ending, IS_KNOWN_WITHIN)
        if let_go or ending:
            await self._store.durable()

    def _expect(self, run: Run) -> None:
        if self._mountings is not None:
            self._mountings.expect(run)

    def _lives(self, id_: str) -> bool:
        live = self._containers.find(id_)
        return live is not None and not live.finished

    def _log(self, id_: str) -> Path:
        return self._logs / f"{id_}.log"

    def _copy_place(self, mount: str) -> Path:
        return self._copies / hashlib.sha256(mount.encode()).hexdigest()[:32]

    def _copy_of(self, mount: str) -> Path:
        place = self._copy_place(mount)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return place


async def _all_end(live_containers: Sequence[LiveContainer], within: float) -> bool:
    try:
        async with asyncio.timeout(within):
            for live in live_containers:
                await live.end.wait()
    except TimeoutError:
        return False
    return True


def _require_its_place(users: Sequence[MountUser]) -> None:
    for user in users:
        if user.target != SOCKETS:
            raise Problem("bad_target", f'"{user.name}" mounts it at {user.target}: its place is {SOCKETS}.', 400)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return [command]
