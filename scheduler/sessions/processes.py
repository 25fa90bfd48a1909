"""Processes: who says HELLO, with which lease page, what they ask, and when they are gone.

A session is one process for as long as it runs one program. It is told apart from others by pid and start time, its
end is told by its pidfd (not by its connection: a fork can hold that open, and a living process can lose it), and its
lease returns when the card no longer shows it (reaper.py).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Sequence

from scheduler.sessions import lease_pages
from scheduler.sessions.broker import Broker
from scheduler.sessions.lease_pages import BadPage, Lease, LeasePage
from scheduler.sessions.roster import Roster
from scheduler.sessions.server import Connection, is_power_of_two
from scheduler.sessions.tenants import Session, Tenant, start_time
from scheduler.sessions.wire import WIRE_OLDEST, WIRE_VERSION, Code, Frame, Purpose, Type, WireError

log = logging.getLogger(__name__)

NEEDS_LIMIT = 1024  # open at once from one process, which has no more threads than that in allocations


class Sessions:
    """What the server tells (server.Handler). `died` is called for each process that has ended; `gone` answers it."""

    def __init__(self, broker: Broker, roster: Roster, died: Callable[[Session], None]) -> None:
        self._broker = broker
        self._roster = roster
        self._died = died
        self._processes: dict[tuple[int, int], Session] = {}
        self._connections: dict[Connection, Session] = {}
        self._heirs: dict[int, list[Callable[[], None]]] = {}
        self._returning: dict[int, tuple[Connection, Frame, bool]] = {}  # and whether it has its page
        self._looking: set[asyncio.Task[None]] = set()
        self._ids = itertools.count(1)
        self._since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))

    def hello(self, connection: Connection, frame: Frame, page: int | None) -> None:
        tenant = self._broker.tenants.get(connection.container)
        if not WIRE_OLDEST <= frame.code <= WIRE_VERSION:
            self._refuse(connection, Code.BAD_VERSION)
            return
        if tenant is None or tenant.finished or tenant.killed:
            self._refuse(connection, Code.NOT_RUNNING)
            return
        started = start_time(connection.peer.pid)
        if started is None:
            connection.close()
            return
        session = self._processes.get((connection.peer.pid, started))
        if session is None:
            try:
                session = self._open(tenant, connection, started, frame.code, page)
            except BadPage as error:
                # A process goes on with the page it handed over, so there is no giving it another.
                log.warning(
                    "container %s, process %d: its page is refused: %s", tenant.name, connection.peer.pid, error
                )
                self._refuse(connection, Code.BAD_VERSION)
                return
            self._welcome(connection, session, page=page is None)
        elif session.container == tenant.id:
            self._meet_again(session, connection, frame, page)
        else:
            connection.hold()
            self._replace(session, connection, frame)

    def _meet_again(self, session: Session, connection: Connection, hello: Frame, handed_back: int | None) -> None:
        """The same program on a new connection, or another one (exec): its map tells, and how long that is it chooses.

        So nobody waits for it, and of one process there is one look at a time, for its last connection.
        """
        connection.hold()
        earlier = self._returning.get(session.id)
        inode = lease_pages.inode(session.page)
        has_it = handed_back is not None and os.fstat(handed_back).st_ino == inode
        self._returning[session.id] = connection, hello, has_it
        if earlier is not None:
            earlier[0].close()
        else:
            task = asyncio.create_task(self._recognise(session, inode))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _recognise(self, session: Session, inode: int) -> None:
        looked_for, mapped = None, False
        while looked_for is not self._returning[session.id]:
            looked_for = self._returning[session.id]
            try:
                mapped = await asyncio.to_thread(lease_pages.is_mapped, session.pid, inode)
            except OSError as error:  # out of descriptors, say: it connects again
                log.warning("process %d cannot be looked at: %s", session.pid, error)
                self._returning.pop(session.id)[0].close()
                return
        connection, hello, has_it = self._returning.pop(session.id)
        if not connection.open:
            return
        if session.id not in self._broker.sessions:
            self._inherit(connection, hello)  # it has ended meanwhile, and all of it has come back
        elif mapped and not session.ended:
            self._reconnect(session, connection, has_it)
            connection.go_on()
        else:
            self._replace(session, connection, hello)

    def _replace(self, session: Session, connection: Connection, hello: Frame) -> None:
        """It has become another program (exec). What the old one held must be back before the new one starts."""
        self._heirs.setdefault(session.id, []).append(lambda: self._inherit(connection, hello))
        self._process_ended(session)

    def _refuse(self, connection: Connection, code: Code) -> None:
        connection.send(Frame(Type.REFUSED, code=code))
        connection.close()

    def _open(
        self, tenant: Tenant, connection: Connection, started: int, version: int, handed_back: int | None
    ) -> Session:
        """Raises BadPage."""
        pid, pidfd = connection.peer.pid, os.dup(connection.peer.pidfd)
        try:
            if handed_back is None:
                page = lease_pages.make(pid, tenant.id, list(tenant.places(self._broker.contexts).values()), version)
            else:
                page = self._take_over(tenant, handed_back, started)
        except BaseException:
            os.close(pidfd)
            raise
        return self.open(tenant, pid, started, pidfd, page, taken_over=handed_back is not None)

    def _take_over(self, tenant: Tenant, handed_back: int, started: int) -> LeasePage:
        if started > self._since:
            # Else each new process could bring a page that it made itself, and have its whole quota past the queue.
            raise BadPage("no earlier scheduler can have given it to a process that is younger than this one")
        page = lease_pages.take_over(handed_back, tenant.quota)
        inode = lease_pages.inode(page)
        if any(lease_pages.inode(session.page) == inode for session in self._broker.sessions.values()):
            page.close()
            raise BadPage("it belongs to another process")
        return page

    def open(
        self, tenant: Tenant, pid: int, started: int, pidfd: int, page: LeasePage, *, taken_over: bool = False
    ) -> Session:
        """Makes a process known; `pidfd` and `page` become the session's.

        Of a page taken over only what is used counts, up to what its container's quota has room for: no page, however
        it came to be, brings headroom with it.
        """
        leases = {
            gpu: Lease.taken_over(page[index], index, tenant.quota[gpu] - tenant.granted(gpu))
            if taken_over
            else Lease(page[index], index)
            for gpu, index in lease_pages.slots(page, tenant.quota).items()
        }
        session = Session(next(self._ids), tenant.id, pid, started, pidfd, page, leases)
        self._processes[pid, started] = session
        if taken_over:
            self._broker.waits.took_over(tenant, max((lease.waiting for lease in leases.values()), default=0.0))
        self._roster.open(session)
        asyncio.get_running_loop().add_reader(pidfd, self._process_ended, session)
        return session

    def _welcome(self, connection: Connection, session: Session, *, page: bool = True) -> None:
        session.connection = connection
        self._connections[connection] = session
        for lease in session.leases.values():
            lease.said_hello()
        connection.send(Frame(Type.WELCOME), session.page.fileno() if page else None)

    def _reconnect(self, session: Session, connection: Connection, has_it: bool) -> None:
        """The same program again, on a new connection: because the old one broke, or it closed all its descriptors."""
        if session.connection is not None:
            session.connection.close()
        self._welcome(connection, session, page=not has_it)

    def _inherit(self, connection: Connection, hello: Frame) -> None:
        if connection.open:
            self.hello(connection, hello, None)
            connection.go_on()

    def message(self, connection: Connection, frame: Frame) -> None:
        session = self._connections[connection]
        if frame.slot >= len(session.page):
            raise WireError(f"slot {frame.slot} of {len(session.page)}")
        gpu = session.gpu(frame.slot)
        if frame.type == Type.NEED:
            self._need(session, connection, frame, gpu)
        elif frame.type == Type.RELEASED:
            self._broker.collect(session)  # on all: where the socket was full, those of other GPUs were not sent
        elif frame.type == Type.PHYSICAL and gpu is not None:
            self._physical(session, gpu, frame.bytes)

    def _physical(self, session: Session, gpu: str, size: int) -> None:
        """The card was fuller than we knew; the next measurement finds out by whom."""
        session.physical += 1
        if is_power_of_two(session.physical):
            log.warning(
                "container %s, process %d: GPU %s had no memory for %d bytes inside its lease (%d times)",
                self._broker.tenants[session.container].name, session.pid, gpu, size, session.physical,
            )  # fmt: skip
            self._broker.records.card_full(self._broker.tenants[session.container], session, gpu, size)

    def _need(self, session: Session, connection: Connection, frame: Frame, gpu: str | None) -> None:
        if frame.code not in (Purpose.MEMORY, Purpose.CONTEXT):
            raise WireError(f"purpose {frame.code}")
        if frame.serial in session.asked:
            session.asked[frame.serial] = connection  # asked again after a lost connection; it keeps its place
            return
        if gpu is None or len(session.asked) >= NEEDS_LIMIT:
            connection.send(Frame(Type.REJECTED, frame.slot, frame.serial, Code.SHORTAGE))
            return
        session.asked[frame.serial] = connection
        self._broker.need(session, frame.serial, gpu, frame.bytes)

    def closed(self, connection: Connection, unsent: list[Frame]) -> None:
        session = self._connections.pop(connection, None)
        if session is None:
            return
        if session.connection is connection:
            session.connection = None
        for serial, asker in session.asked.items():
            if asker is connection:
                session.asked[serial] = None
        for frame in unsent:
            if frame.type == Type.GRANTED and (gpu := session.gpu(frame.slot)):
                session.leases[gpu].hung_up(frame.bytes)

    def _process_ended(self, session: Session) -> None:
        """The process is gone (or has become another program); its lease goes when the card says so."""
        if session.ended:
            return
        session.ended = True
        asyncio.get_running_loop().remove_reader(session.pidfd)
        if session.connection is not None:
            session.connection.close()
        self._died(session)

    async def end_replaced(self, sessions: Sequence[Session]) -> None:
        """Ends those whose process has become another program (exec), one that says no HELLO."""
        pages = [(session.pid, lease_pages.inode(session.page)) for session in sessions]
        # How much a process has mapped is its own choice.
        mapped = await asyncio.to_thread(lambda: [lease_pages.is_mapped(pid, inode) for pid, inode in pages])
        for session, still in zip(sessions, mapped, strict=True):
            if not still:
                self._process_ended(session)

    def gone(self, session: Session) -> None:
        """The card no longer shows the process: what it held has come back."""
        del self._processes[session.pid, session.started]
        self._roster.close(session)
        session.close()
        for heir in self._heirs.pop(session.id, ()):
            heir()
