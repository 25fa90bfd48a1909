"""Processes: who says HELLO, with which lease page, what they ask, and when they are gone.

A session is one process for as long as it runs one program, which the kernel tells at once (live_containers.Program):
its map would tell too, but how long that is a process chooses. Its pidfd shows its end (not by its connection: a
fork can hold that open, and a living process can lose it), and its lease returns when the card no longer shows it
(reaper.py).
"""

import asyncio
import contextlib
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from scheduler import clock
from scheduler.gpus import uuid_bytes
from scheduler.parts import Background
from scheduler.sessions import lease_pages, server
from scheduler.sessions.broker import Broker
from scheduler.sessions.connection import Connection
from scheduler.sessions.grants import Grants
from scheduler.sessions.lease_pages import BadPage, Lease, LeasePage
from scheduler.sessions.live_containers import LiveContainer, Pairs, Program, Session, Withheld, program_of
from scheduler.sessions.looks import Looks
from scheduler.sessions.roster import Roster
from scheduler.sessions.wire import WIRE_VERSION, Code, Frame, Purpose, Type, WireError

log = logging.getLogger(__name__)

LOOK_AGAIN = 1.0  # seconds: others may have ended by then, to whom something was owed
OPEN_CALLS = 16  # of a container, weighed at each decision: half a millisecond for those of eight containers


class Sessions:
    """What the server tells (server.Handler). `died` is called for each process that has ended; `gone` answers it.

    `owns` tells whether a host pid runs inside the container with this engine id; `owes`, for how many seconds a
    person's new containers get no memory on these GPUs, since their others have computed more than their share.
    """

    def __init__(
        self,
        broker: Broker,
        roster: Roster,
        grants: Grants,
        owns: Callable[[str, int], bool],
        died: Callable[[Session], None],
        owes: Callable[[str, Iterable[str]], float] = lambda owner, gpus: 0.0,
    ) -> None:
        self._broker, self._roster, self._grants, self._owns, self._died = broker, roster, grants, owns, died
        self._owes = owes
        self._processes: dict[tuple[int, int], Session] = {}
        self._connections: dict[Connection, Session] = {}
        self._heirs: dict[int, list[Callable[[], None]]] = {}
        self._withheld: dict[Connection, str] = {}  # whose first call is not heard yet → its container
        self._held: dict[str, deque[Connection]] = {}  # container → who is heard when one of its calls is answered
        self._looks = Looks()
        self._looking = Background()
        self._ids = itertools.count(1)
        self._since = int(clock.boot() * os.sysconf("SC_CLK_TCK"))

    def hello(self, connection: Connection, frame: Frame) -> None:
        live = self._broker.live_containers.get(connection.container)
        if frame.code != WIRE_VERSION:
            self._refuse(connection, Code.BAD_VERSION)
            return
        if live is None or self._is_over(live):
            self._refuse(connection, Code.NOT_RUNNING)
            return
        program = program_of(connection.peer.pid)
        anothers = not connection.peer.sure and self._is_anothers(live, connection.peer.pid)
        if program is None or connection.peer.has_ended():  # asked last: until now the pid was its own
            connection.close()
            return
        session = self._processes.get((connection.peer.pid, program.started))
        if anothers or (session is not None and session.container != live.id):
            connection.close("that process is another container's")
        elif session is not None and session.program == program and not session.ended:
            self._reconnect(session, connection)
        elif session is not None:
            connection.hold()
            self._replace(session, connection, frame)
        elif program.started > self._since:
            # No earlier scheduler can have given it a page. Else each new process could bring one that it made itself,
            # and have its whole quota past the queue.
            self._meet(live, connection, program, None)
        else:
            connection.hold()
            self._looking.begin(self._find_page(live, connection, program, frame))

    def _is_anothers(self, live: LiveContainer, pid: int) -> bool:
        """Whether this process runs in another container than who connected: the pid has passed on."""
        if live.engine_id and self._owns(live.engine_id, pid):
            return False
        others = (
            each.engine_id for each in self._broker.live_containers.values() if each is not live and each.engine_id
        )
        return any(self._owns(engine_id, pid) for engine_id in others)

    def _is_over(self, live: LiveContainer) -> bool:
        """It has ended, or is being ended: not only to be, since who is refused may end before that is durable."""
        known = self._broker.state.containers.get(live.id)
        return live.finished or (known.killed if known else live.killed)

    async def _find_page(self, live: LiveContainer, connection: Connection, program: Program, hello: Frame) -> None:
        """A process of before this scheduler's start that the take-over did not find may have its page all the same."""
        pid, page = connection.peer.pid, None
        try:
            page = await self._looks.look(live.id, partial(lease_pages.find, pid, live.id))
            if not connection.open:
                return
            connection.go_on()  # first: it may be held again
            if (pid, program.started) in self._processes or self._is_over(live):
                self.hello(connection, hello)  # it was quicker on another connection, or its container has ended
            else:
                self._meet(live, connection, program, page)
        except OSError as error:  # out of descriptors, say: it connects again
            log.warning("process %d cannot be looked at: %s", pid, error)
            connection.close()
        finally:
            if page is not None:
                os.close(page)

    def _meet(self, live: LiveContainer, connection: Connection, program: Program, found: int | None) -> None:
        """`found`: the page that it has from an earlier scheduler."""
        if found is None and self._has_enough(live, connection):
            connection.close("its container has enough processes")  # no refusal: it may try again
            return
        try:
            session = self._open(live, connection, program, found)
        except BadPage as error:
            # A process goes on with the page that it has, so there is no giving it another.
            log.warning("container %s, process %d: its page is refused: %s", live, connection.peer.pid, error)
            self._refuse(connection, Code.BAD_VERSION)
        else:
            self._welcome(connection, session)

    def _has_enough(self, live: LiveContainer, connection: Connection) -> bool:
        """As many as it may have connections: a process that has hung up is known, and costs, as long as it lives."""
        room = connection.room(len(self._broker.sessions))
        return len(live.sessions) >= min(server.CONNECTIONS, room)

    def _replace(self, session: Session, connection: Connection, hello: Frame) -> None:
        """It has become another program (exec). What the old one held must be back before the new one starts."""
        self._heirs.setdefault(session.id, []).append(lambda: self._inherit(connection, hello))
        self._process_ended(session)

    def _refuse(self, connection: Connection, code: Code) -> None:
        connection.send(Frame(Type.REFUSED, code=code))
        connection.close()

    def _open(self, live: LiveContainer, connection: Connection, program: Program, found: int | None) -> Session:
        """Raises BadPage."""
        pid, pidfd = connection.peer.pid, os.dup(connection.peer.pidfd)
        try:
            if found is None:
                page = lease_pages.make(pid, live.id, list(live.places(self._broker.contexts).values()))
            else:
                page = self._take_over(live, found)
        except BaseException:
            os.close(pidfd)
            raise
        return self.open(live, pid, program, pidfd, page, taken_over=found is not None)

    def _take_over(self, live: LiveContainer, found: int) -> LeasePage:
        page = lease_pages.take_over(found, live.quota, live.card_move)
        inode = lease_pages.inode(page)
        if any(lease_pages.inode(session.page) == inode for session in self._broker.sessions.values()):
            page.close()
            raise BadPage("it belongs to another process")
        return page

    def knows(self, pid: int, program: Program) -> bool:
        return (pid, program.started) in self._processes

    def open(
        self, live: LiveContainer, pid: int, program: Program, pidfd: int, page: LeasePage, *, taken_over: bool = False
    ) -> Session:
        """Makes a process known; `pidfd` and `page` become the session's.

        Of a page taken over only what is used counts, up to what an earlier scheduler had granted and its container's
        quota has room for: no page, however it came to be, brings headroom with it.
        """
        leases = {}
        for gpu, index in lease_pages.slots(page, live.quota).items():
            room = live.quota[gpu] - live.granted(gpu)
            before = self._grants.before(pid, program.started, gpu)
            if live.card_move and gpu == live.card_move["to"]:  # the scheduler before may not have come to note it
                before = before or self._grants.before(pid, program.started, live.card_move["from"])
            note = self._grants.note(pid, program.started, gpu)
            if taken_over:
                leases[gpu] = Lease.taken_over(page[index], index, room if before is None else min(room, before), note)
            else:
                note(0)
                leases[gpu] = Lease(page[index], index, note)
        session = Session(next(self._ids), live.id, pid, program, pidfd, page, leases)
        if taken_over and live.card_move:
            session.pairs = self.pairs(live.card_move, live.quota)
        self._processes[pid, program.started] = session
        if taken_over and not live.swap:  # it may be found only after its container's move was undone
            page.hold(False)
        if taken_over:
            self._broker.waits.took_over(live, max((lease.waiting for lease in leases.values()), default=0.0))
        self._roster.open(session)
        asyncio.get_running_loop().add_reader(pidfd, self._process_ended, session)
        return session

    def pairs(self, card_move: Mapping[str, str], its: Iterable[str]) -> list[Pairs]:
        """How the driver may restore what has `its` cards by now. It wants all named that the program's driver knows.

        Those are all cards of the host, or, where others have no device node, those that the program had.
        """
        old, new = card_move["from"], card_move["to"]
        host = [(gpu, {old: new, new: old}.get(gpu, gpu)) for gpu in self._broker.state.gpus]
        return [host, [(old if gpu == new else gpu, gpu) for gpu in its]]

    def reassign(self, live: LiveContainer, card_move: Mapping[str, str], old: str, new: str) -> None:
        """A container that is out has its quota on another card, and comes back there."""
        broker, pressed = self._broker, new in self._broker.pressed
        for session in live.sessions.values():
            its = [new if gpu == old else gpu for gpu in live.quota]
            session.pairs = self.pairs(card_move, its) if card_move and session.stopped else ()
            if (lease := session.leases.get(old)) is None:
                continue
            lease.reassign(uuid_bytes(new), self._grants.note(session.pid, session.program.started, new))
            self._grants.forget(session.pid, session.program.started, [old])
            session.leases = {new if gpu == old else gpu: each for gpu, each in session.leases.items()}
            broker.leases.setdefault(new, {})[session.id] = broker.leases[old].pop(session.id)
            lease.set_pressure(pressed)
        for each in (live.quota, live.peak, live.computed, live.reported):
            renamed = {new if gpu == old else gpu: value for gpu, value in each.items()}
            each.clear()
            each.update(renamed)  # type: ignore[arg-type]
        live.card_move = card_move
        broker.swapped_out(live, {old: new})
        broker.show(live)

    def _welcome(self, connection: Connection, session: Session) -> None:
        session.connection = connection
        self._connections[connection] = session
        for lease in session.leases.values():
            lease.said_hello()
        connection.send(Frame(Type.WELCOME), session.page.fileno())

    def _reconnect(self, session: Session, connection: Connection) -> None:
        """The same program again, on a new connection: because the old one broke, or it closed all its descriptors."""
        if session.connection is not None:
            session.connection.close()
        self._welcome(connection, session)

    def _inherit(self, connection: Connection, hello: Frame) -> None:
        if connection.open:
            connection.go_on()  # first: it may be held again
            self.hello(connection, hello)

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
        live = self._broker.live_containers[session.container]
        live.physical += 1  # by container: it chooses how many processes it has
        if server.is_power_of_two(live.physical):
            log.warning(
                "container %s, process %d: GPU %s had no memory for %d bytes inside its lease (%d times)",
                live, session.pid, gpu, size, live.physical,
            )  # fmt: skip
            self._broker.records.card_full(live, session, gpu, size)

    def _need(self, session: Session, connection: Connection, frame: Frame, gpu: str | None) -> None:
        if frame.code not in (Purpose.MEMORY, Purpose.CONTEXT):
            raise WireError(f"purpose {frame.code}")
        if frame.serial in session.asked:
            session.asked[frame.serial] = connection  # asked again after a lost connection; it keeps its place
            return
        live = self._broker.live_containers[session.container]
        if gpu is None:
            connection.send(Frame(Type.REJECTED, frame.slot, frame.serial, Code.SHORTAGE))
        elif not any(map(live.granted, live.quota)) and (wait := self._owes(live.owner, live.quota)):
            connection.hold(frame)
            self._withhold(live, connection, frame.bytes, wait)
            asyncio.get_running_loop().call_later(min(wait, LOOK_AGAIN), connection.go_on)
        elif live.open_calls >= OPEN_CALLS:
            connection.hold(frame)
            self._held.setdefault(session.container, deque()).append(connection)
        else:
            self._heard(connection)
            self._broker.need(session, frame.serial, gpu, frame.bytes, connection)

    def _withhold(self, live: LiveContainer, connection: Connection, size: int, wait: float) -> None:
        """It waits like a call that is suspended, for all to see."""
        now = self._broker.now()
        self._withheld[connection] = live.id
        live.withheld = Withheld(live.withheld.since if live.withheld else now, size, now + wait)
        self._broker.waits.update()

    def _heard(self, connection: Connection) -> None:
        """Its call is withheld no more: it is with the broker, or will never come."""
        id_ = self._withheld.pop(connection, None)
        if id_ is None or id_ in self._withheld.values():
            return
        if live := self._broker.live_containers.get(id_):
            live.withheld = None
            self._broker.waits.update()

    def answered(self, live: LiveContainer) -> None:
        """There may be room for another call of this container: whoever has waited longest is heard."""
        held = self._held.get(live.id)
        if held and live.open_calls < OPEN_CALLS:
            connection = held.popleft()
            if not held:
                del self._held[live.id]
            connection.go_on()

    def tick(self) -> None:
        """To be called now and then: what a process frees while it is not heard is not reported either."""
        for container, held in list(self._held.items()):
            for session in {self._connections[connection] for connection in held}:
                self._broker.collect(session)
            self.answered(self._broker.live_containers[container])

    def closed(self, connection: Connection) -> None:
        self._heard(connection)
        session = self._connections.pop(connection, None)
        if session is None:
            return
        if session.connection is connection:
            session.connection = None
        if (held := self._held.get(session.container)) and connection in held:
            held.remove(connection)
            if not held:
                del self._held[session.container]
        for serial, asker in session.asked.items():
            if asker is connection:
                session.asked[serial] = None

    def _process_ended(self, session: Session) -> None:
        """The process is gone (or has become another program); its lease goes when the card says so."""
        if session.ended:
            return
        session.ended = True
        asyncio.get_running_loop().remove_reader(session.pidfd)
        if session.connection is not None:
            session.connection.close()
        self._died(session)

    def end_replaced(self, sessions: Sequence[Session]) -> None:
        """Ends those whose process has become another program (exec), one that says no HELLO."""
        for session in sessions:
            with contextlib.suppress(OSError):  # out of descriptors: it is looked at again
                if program_of(session.pid) != session.program:
                    self._process_ended(session)

    def gone(self, session: Session) -> None:
        """The card no longer shows the process: what it held has come back."""
        del self._processes[session.pid, session.program.started]
        self._roster.close(session)
        session.close()
        self._grants.forget(session.pid, session.program.started, session.leases)
        for heir in self._heirs.pop(session.id, ()):
            heir()
